package worker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"gorail/test/hostmem"
)

// envProgram is set: this process runs the program of Become. Its value is the folder.
const envProgram = "GORAIL_WORKER_PROGRAM"

// Files of the folder by which a test and the program of Become speak.
const (
	becomes = "becomes" // the test: call exec
	runs    = "runs"    // the program: it has filled its memory
	mark    = "mark"    // the test: fill the memory again
	marked  = "marked"
	stop    = "stop"   // the test: compare the memory and end
	result  = "result" // the program: the number of bytes that others have changed since mark
)

// BecomeArgs names the folder, and the size of the program's memory.
type BecomeArgs struct {
	Dir  string
	Size int
}

// Become makes the worker's process run another program from Successor.Begin on. The program has memory of so many bytes at
// hostmem.FixedAt. No further command reaches the worker.
func (w *Worker) Become(dir string, size int) *Successor {
	w.t.Helper()
	call[ErrOut](w, "Become", BecomeArgs{dir, size}, Deadline)
	return &Successor{w, dir}
}

// Successor is the program that a worker's process runs.
type Successor struct {
	w   *Worker
	dir string
}

// Begin lets the process call exec.
func (s *Successor) Begin() { s.say(becomes) }

// Runs reports that the program runs.
func (s *Successor) Runs() bool { return there(s.dir, runs) }

// Mark makes the program fill its memory again.
func (s *Successor) Mark() {
	s.w.t.Helper()
	s.say(mark)
	s.hear(marked)
}

// Changed ends the program, and returns the number of its bytes that others have changed since Mark.
func (s *Successor) Changed() int {
	s.w.t.Helper()
	s.say(stop)
	s.hear(result)
	b, err := os.ReadFile(filepath.Join(s.dir, result))
	n, err2 := strconv.Atoi(string(b))
	if err = errors.Join(err, err2); err != nil {
		s.w.t.Fatalf("the program's result: %v", err)
	}
	return n
}

func (s *Successor) say(name string) {
	s.w.t.Helper()
	if err := put(s.dir, name, ""); err != nil {
		s.w.t.Fatalf("%v", err)
	}
}

func (s *Successor) hear(name string) {
	s.w.t.Helper()
	if !Eventually(Deadline, func() bool { return there(s.dir, name) }) {
		s.w.t.Fatalf("the program does not answer: %s", name)
	}
}

func there(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// put makes a file. Its name appears with its text.
func put(dir, name, text string) error {
	hidden := filepath.Join(dir, "."+name)
	return errors.Join(os.WriteFile(hidden, []byte(text), 0o600), os.Rename(hidden, filepath.Join(dir, name)))
}

func await(dir, name string) {
	for !there(dir, name) {
		time.Sleep(time.Millisecond)
	}
}

// Become implements Worker.Become.
func (s *Server) Become(in BecomeArgs, _ *ErrOut) error {
	go func() {
		await(in.Dir, becomes)
		env := append(os.Environ(), envProgram+"="+in.Dir, fmt.Sprintf("%s_SIZE=%d", envProgram, in.Size))
		fmt.Fprintln(os.Stderr, "worker: exec:", unix.Exec("/proc/self/exe", os.Args, env))
	}()
	return nil
}

// program is what a process runs after Become.
func program(dir string) error {
	size, err := strconv.Atoi(os.Getenv(envProgram + "_SIZE"))
	if err != nil {
		return err
	}
	b, err := hostmem.Alloc(size, hostmem.Pinned)
	if err != nil {
		return err
	}
	own := bytes.Repeat([]byte{0x77}, size)
	copy(b.B, own)
	if err := put(dir, runs, ""); err != nil {
		return err
	}
	await(dir, mark)
	copy(b.B, own)
	if err := put(dir, marked, ""); err != nil {
		return err
	}
	await(dir, stop)
	changed := 0
	for _, c := range b.B {
		if c != 0x77 {
			changed++
		}
	}
	return put(dir, result, strconv.Itoa(changed))
}
