package subprocess

import (
	"bytes"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Options say how to start a process.
type Options struct {
	Args    []string             // behind the program's name
	Setenv  []string             // KEY=VALUE, on top of the environment of this process
	Attr    *syscall.SysProcAttr // namespaces, credentials
	Verbose bool                 // what it prints goes to our standard error instead of Output
	Stderr  *os.File             // its standard error; nil: as its standard output
}

// Handle is a process, on this host or another. Its methods are safe for concurrent use.
type Handle interface {
	Pid() int
	Signal(syscall.Signal) error
	Wait() (how string, ok bool) // blocks until its end; ok: status 0
	Output() string              // the last part of what it printed
	Forget()                     // empties Output
}

// Process is a process on this host. It implements Handle.
type Process struct {
	cmd  *exec.Cmd
	out  tail
	once sync.Once
}

// Exec runs this program again, with conn as the descriptor that Commands finds. The caller closes conn.
func Exec(o Options, conn *os.File) (*Process, error) {
	// Not by its name: that may be another build's by now.
	p := &Process{cmd: exec.Command("/proc/self/exe", o.Args...)}
	p.cmd.Env = append(os.Environ(), o.Setenv...)
	p.cmd.ExtraFiles = []*os.File{conn}
	p.cmd.SysProcAttr = o.Attr
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if o.Verbose {
		p.cmd.Stdout, p.cmd.Stderr = os.Stderr, os.Stderr
	}
	if o.Stderr != nil {
		p.cmd.Stderr = o.Stderr
	}
	p.cmd.WaitDelay = time.Second
	return p, p.cmd.Start()
}

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Output is the last part of what it printed.
func (p *Process) Output() string { return p.out.String() }

// Forget empties Output.
func (p *Process) Forget() { p.out.clear() }

// Wait blocks until the process has ended, and says how.
func (p *Process) Wait() (how string, ok bool) {
	p.once.Do(func() { _ = p.cmd.Wait() })
	return p.cmd.ProcessState.String(), p.cmd.ProcessState.Success()
}

// tail keeps the end of what a process printed.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if n := len(t.b) - tailSize; n > 0 {
		t.b = t.b[n:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.ToValidUTF8(t.b, []byte("?")))
}

func (t *tail) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = nil
}
