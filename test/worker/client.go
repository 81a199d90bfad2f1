package worker

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"gorail/internal/subprocess"
	"gorail/nixlapi"
	"gorail/test/testenv"
)

// Deadline limits every command without its own timeout.
var Deadline = testenv.Patient(60 * time.Second)

// grace is added to a command's own timeout.
var grace = testenv.Patient(20 * time.Second)

// Options describe how to start a worker.
type Options struct {
	Env     testenv.Env
	Setenv  []string             // KEY=VALUE, added to the test's environment
	Verbose bool                 // print the worker's output
	Attr    *syscall.SysProcAttr // namespaces, credentials
	Stderr  *os.File             // the worker's standard error; nil: same as its standard output
}

// process returns the options of the worker's process.
func (o Options) process() subprocess.Options {
	env := append([]string{envRun + "=1", envWheel + "=" + o.Env.WheelDir, "NIXL_PLUGIN_DIR=" + o.Env.PluginDir,
		// UCX would replace the Go runtime's fault handlers.
		"UCX_HANDLE_ERRORS=none"}, o.Setenv...)
	return subprocess.Options{Setenv: env, Attr: o.Attr, Verbose: o.Verbose, Stderr: o.Stderr}
}

// Worker is a process with agents in it.
type Worker struct {
	*subprocess.Client
	t testenv.TB
}

// Start starts a worker. The test's cleanup ends it.
func Start(t testenv.TB, o Options) *Worker {
	t.Helper()
	c, err := subprocess.Start(o.process(), service)
	if err != nil {
		t.Fatalf("worker: %v", err)
	}
	return supervise(t, c)
}

// supervise makes the test's cleanup end a worker, with SIGKILL if needed.
func supervise(t testenv.TB, c *subprocess.Client) *Worker {
	w := &Worker{c, t}
	t.Cleanup(w.end)
	return w
}

func (w *Worker) end() { w.End(5 * time.Second) }

// Stop sends SIGSTOP.
func (w *Worker) Stop() {
	w.t.Helper()
	if w.Signal(syscall.SIGSTOP) != nil {
		return
	}
	// One thread takes the signal and stops the others. On a busy machine they run on until it is scheduled.
	for end := time.Now().Add(Deadline); !stopped(w.Pid()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("the process %d does not stop", w.Pid())
		}
	}
}

// stopped reports that every thread of a process is stopped or gone, as proc(5) has it.
func stopped(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, name := range stats {
		b, _ := os.ReadFile(name)
		_, state, _ := bytes.Cut(b, []byte(") ")) // the thread's name may hold anything but this
		if len(state) > 0 && !bytes.ContainsAny(state[:1], "TtZX") {
			return false
		}
	}
	return true
}

// Cont sends SIGCONT.
func (w *Worker) Cont() { _ = w.Signal(syscall.SIGCONT) }

// Exit destroys the agents, ends the process and returns its failure.
func (w *Worker) Exit() error {
	w.t.Helper()
	out := call[ErrOut](w, "Shutdown", Ref{}, Deadline)
	w.end()
	if out.Err != nil {
		return out.Err
	}
	if how, ok := w.Wait(); !ok {
		return fmt.Errorf("worker: %s\n%s", how, w.Output())
	}
	return nil
}

// Settled is Stats after the worker's own Go, which is not the plugin's, has given its garbage back: so memory is that of the host's libraries.
func (w *Worker) Settled() Stats {
	w.t.Helper()
	return call[Stats](w, "SettledStats", Ref{}, Deadline)
}

// Stats reads the state of the process.
func (w *Worker) Stats() Stats {
	w.t.Helper()
	return call[Stats](w, "ProcessStats", Ref{}, Deadline)
}

// Inherited returns the descriptors that a program has which the process executes now, besides the standard ones.
func (w *Worker) Inherited() []string {
	w.t.Helper()
	return call[[]string](w, "Inherited", Ref{}, Deadline)
}

// Future is a running command.
type Future[R any] struct {
	*subprocess.Future[R]
	w *Worker
}

// async starts a command. Wait must be called on the test's goroutine.
func async[R any](w *Worker, method string, args any, limit time.Duration) *Future[R] {
	return &Future[R]{subprocess.Go[R](w.Client, method, args, limit), w}
}

func call[R any](w *Worker, method string, args any, limit time.Duration) R {
	w.t.Helper()
	return async[R](w, method, args, limit).Wait()
}

// Wait returns the reply. A missed deadline or a dead worker fails the test. Use Result for a worker that may die.
func (f *Future[R]) Wait() R {
	f.w.t.Helper()
	r, err := f.Result()
	if err != nil {
		f.w.t.Fatalf("worker: %v\n%s", err, f.w.Output())
	}
	return r
}

// asErr keeps a nil *nixlapi.Error from becoming a non-nil error.
func asErr(e *nixlapi.Error) error {
	if e == nil {
		return nil
	}
	return e
}
