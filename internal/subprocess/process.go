package subprocess

import (
	"bytes"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Options describe how to start a process.
type Options struct {
	Args    []string             // after the program's name
	Setenv  []string             // KEY=VALUE, added to the environment of this process
	Attr    *syscall.SysProcAttr // namespaces, credentials
	Verbose bool                 // send the process's output to our standard error instead of Output
	Stderr  *os.File             // the process's standard error; nil: same as its standard output
}

// Handle is a process on this or another host. Its methods are safe for concurrent use.
type Handle interface {
	Pid() int
	Signal(syscall.Signal) error
	Wait() (how string, ok bool) // blocks until the process has ended; ok: status 0
	Output() string              // the last part of the process's output
	Forget()                     // empties Output
}

// Process is a process on this host. It implements Handle.
type Process struct {
	cmd  *exec.Cmd
	out  tail
	once sync.Once
}

// Exec runs this program again, with conn as its inherited descriptor. The caller closes conn.
func Exec(o Options, conn *os.File) (*Process, error) {
	// Not by the program's name: another build may have replaced the file.
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

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Output returns the last part of the process's output.
func (p *Process) Output() string { return p.out.String() }

// Forget empties Output.
func (p *Process) Forget() { p.out.clear() }

// Wait blocks until the process has ended, and reports how it ended.
func (p *Process) Wait() (how string, ok bool) {
	p.once.Do(func() { _ = p.cmd.Wait() })
	return p.cmd.ProcessState.String(), p.cmd.ProcessState.Success()
}

// tail keeps the end of a process's output.
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
