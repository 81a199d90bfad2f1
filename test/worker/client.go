package worker

import (
	"bytes"
	"errors"
	"fmt"
	"net/rpc"
	"os"
	"sync"
	"syscall"
	"time"

	"gorail/nixlapi"
	"gorail/test/testenv"
)

// Deadline bounds every command that has no timeout of its own.
var Deadline = testenv.Patient(60 * time.Second)

// grace is added to the timeout of a command that has one.
var grace = testenv.Patient(20 * time.Second)

// Options say how to start a worker.
type Options struct {
	Env     testenv.Env
	Setenv  []string             // KEY=VALUE, on top of the environment of the test
	Verbose bool                 // print what the worker prints
	Attr    *syscall.SysProcAttr // namespaces, credentials
	Stderr  *os.File             // its standard error; nil: Output has it
}

// Worker is a process with agents in it.
type Worker struct {
	t    testenv.TB
	proc process
	rpc  *rpc.Client
	dead bool // killed on purpose
}

// tail keeps the last part of what a worker printed.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b = append(w.b, p...)
	if n := len(w.b) - 64<<10; n > 0 {
		w.b = w.b[n:]
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(bytes.ToValidUTF8(w.b, []byte("?")))
}

func (w *tail) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b = nil
}

// Start runs a worker that the test's cleanup ends.
func Start(t testenv.TB, o Options) *Worker {
	t.Helper()
	w := &Worker{t: t}
	if err := w.start(o); err != nil {
		t.Fatalf("worker: %v", err)
	}
	t.Cleanup(w.end)
	return w
}

func (w *Worker) start(o Options) error {
	inR, inW, err := os.Pipe()
	if err != nil {
		return err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _, _ = inR.Close(), outW.Close() }()
	c, err := spawn(o, envRun+"=1", inR, outW)
	if err != nil {
		return err
	}
	w.proc, w.rpc = c, rpc.NewClient(pipe{outR, inW})
	return nil
}

// Pid is the worker's process id.
func (w *Worker) Pid() int { return w.proc.pid() }

// Output is the last part of what the worker printed.
func (w *Worker) Output() string { return w.proc.output() }

// Forget empties Output, so that a test sees what comes next.
func (w *Worker) Forget() { w.proc.forget() }

// end is the cleanup: an orderly end, or SIGKILL.
func (w *Worker) end() {
	if w.dead {
		return
	}
	_ = w.proc.signal(syscall.SIGCONT)
	_ = w.rpc.Close()
	t := time.AfterFunc(5*time.Second, func() { _ = w.proc.signal(syscall.SIGKILL) })
	defer t.Stop()
	w.proc.wait()
	w.dead = true
}

// Kill sends SIGKILL and waits for the end.
func (w *Worker) Kill() {
	w.dead = true
	_ = w.proc.signal(syscall.SIGKILL)
	w.proc.wait()
	_ = w.rpc.Close()
}

// Stop sends SIGSTOP.
func (w *Worker) Stop() { _ = w.proc.signal(syscall.SIGSTOP) }

// Cont sends SIGCONT.
func (w *Worker) Cont() { _ = w.proc.signal(syscall.SIGCONT) }

// Exit destroys the agents, ends the process and returns how it ended.
func (w *Worker) Exit() error {
	w.t.Helper()
	out := call[ErrOut](w, "Shutdown", Ref{}, Deadline)
	w.end()
	if out.Err != nil {
		return out.Err
	}
	if how, ok := w.proc.wait(); !ok {
		return fmt.Errorf("worker: %s\n%s", how, w.Output())
	}
	return nil
}

// Stats reads the state of the process.
func (w *Worker) Stats() Stats {
	w.t.Helper()
	return call[Stats](w, "ProcessStats", Ref{}, Deadline)
}

// Future is a command under way.
type Future[R any] struct {
	w      *Worker
	method string
	call   *rpc.Call
	end    time.Time
}

// async starts a command. Wait must be called on the test's goroutine.
func async[R any](w *Worker, method string, args any, limit time.Duration) *Future[R] {
	f := &Future[R]{w: w, method: method, end: time.Now().Add(limit)}
	f.call = w.rpc.Go(service+"."+method, args, new(R), make(chan *rpc.Call, 1))
	return f
}

func call[R any](w *Worker, method string, args any, limit time.Duration) R {
	w.t.Helper()
	return async[R](w, method, args, limit).Wait()
}

// Wait returns the reply. A missed deadline or a dead worker fails the test.
func (f *Future[R]) Wait() R {
	f.w.t.Helper()
	r, err := f.Result()
	if err != nil {
		f.w.t.Fatalf("%v\n%s", err, f.w.Output())
	}
	return r
}

// Result is Wait for a worker that may die.
func (f *Future[R]) Result() (r R, err error) {
	timer := time.NewTimer(time.Until(f.end))
	defer timer.Stop()
	select {
	case c := <-f.call.Done:
		if c.Error != nil {
			if !f.w.dead && isGone(c.Error) {
				f.w.Kill()
				how, _ := f.w.proc.wait()
				return r, fmt.Errorf("worker died in %s: %s", f.method, how)
			}
			return r, fmt.Errorf("%s: %w", f.method, c.Error)
		}
		return *c.Reply.(*R), nil
	case <-timer.C:
		f.w.Kill()
		return r, fmt.Errorf("%s: no answer in time, worker killed", f.method)
	}
}

// isGone tells a lost pipe from an error that the worker answered.
func isGone(err error) bool {
	_, answered := errors.AsType[rpc.ServerError](err)
	return !answered
}

// asErr keeps a nil *nixlapi.Error from becoming a non-nil error.
func asErr(e *nixlapi.Error) error {
	if e == nil {
		return nil
	}
	return e
}
