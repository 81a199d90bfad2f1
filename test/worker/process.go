package worker

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// process is that of a worker, on this host or another.
type process interface {
	pid() int
	signal(syscall.Signal) error
	wait() (how string, ok bool) // blocks until its end; ok: status 0
	output() string              // the last part of what it printed
	forget()                     // empties output
}

// child is a worker on this host.
type child struct {
	cmd  *exec.Cmd
	out  tail
	once sync.Once
}

// spawn executes this program again as a worker, with files as its descriptors from 3 on.
func spawn(o Options, env string, files ...*os.File) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(exe)}
	c.cmd.Env = append(os.Environ(), env, envWheel+"="+o.Env.WheelDir,
		"NIXL_PLUGIN_DIR="+o.Env.PluginDir,
		// UCX would replace the Go runtime's fault handlers.
		"UCX_HANDLE_ERRORS=none")
	c.cmd.Env = append(c.cmd.Env, o.Setenv...)
	c.cmd.ExtraFiles = files
	c.cmd.SysProcAttr = o.Attr
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	if o.Verbose {
		c.cmd.Stdout, c.cmd.Stderr = os.Stderr, os.Stderr
	}
	if o.Stderr != nil {
		c.cmd.Stderr = o.Stderr
	}
	c.cmd.WaitDelay = time.Second
	return c, c.cmd.Start()
}

func (c *child) pid() int                      { return c.cmd.Process.Pid }
func (c *child) signal(s syscall.Signal) error { return c.cmd.Process.Signal(s) }
func (c *child) output() string                { return c.out.String() }
func (c *child) forget()                       { c.out.clear() }

func (c *child) wait() (how string, ok bool) {
	c.once.Do(func() { _ = c.cmd.Wait() })
	return c.cmd.ProcessState.String(), c.cmd.ProcessState.Success()
}
