package worker

import (
	"fmt"
	"net"
	"net/rpc"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"gorail/internal/subprocess"
	"gorail/test/testenv"
)

// EnvKeep turns a program that calls MaybeRun into the keeper of a host. The keeper listens at the variable's address,
// serves the one test that connects (see Dial), and ends with that connection.
const EnvKeep = "GORAIL_TEST_KEEPER"

const keeper = "Keeper" // net/rpc service name

// Keeper starts workers for a test on another host. Its exported methods are the commands.
type Keeper struct {
	ip string

	mu       sync.Mutex
	children map[int]*subprocess.Process
}

// The arguments and replies of a keeper's commands.
type (
	StartArgs struct { // Options without Stderr, a file of this host
		Env     testenv.Env
		Setenv  []string
		Verbose bool
		Attr    *syscall.SysProcAttr
	}
	Started struct {
		Pid  int
		Addr string // the worker's listen address
	}
	SignalArgs struct {
		Pid    int
		Signal syscall.Signal
	}
	Ended struct {
		How string
		OK  bool
	}
	RunOut struct {
		Output string
		Err    string // "": status 0
	}
	Nothing struct{}
)

// keep serves one test.
func keep(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	_ = ln.(*net.TCPListener).SetDeadline(time.Now().Add(2 * Deadline))
	c, err := ln.Accept()
	if err != nil {
		return fmt.Errorf("no test connected: %w", err)
	}
	_ = ln.Close()
	k := &Keeper{ip: c.LocalAddr().(*net.TCPAddr).IP.String(), children: map[int]*subprocess.Process{}}
	s := rpc.NewServer()
	if err := s.RegisterName(keeper, k); err != nil {
		return err
	}
	s.ServeConn(c)
	for _, c := range k.children {
		_ = c.Signal(syscall.SIGKILL)
	}
	return nil
}

// Start starts a worker. The worker waits for its connection.
func (k *Keeper) Start(in StartArgs, out *Started) error {
	ln, err := net.Listen("tcp", net.JoinHostPort(k.ip, "0"))
	if err != nil {
		return err
	}
	defer ln.Close()
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer f.Close()
	c, err := subprocess.Exec(Options{Env: in.Env, Setenv: in.Setenv, Verbose: in.Verbose, Attr: in.Attr}.process(), f)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.children[c.Pid()] = c
	*out = Started{c.Pid(), ln.Addr().String()}
	return nil
}

func (k *Keeper) child(pid int) (*subprocess.Process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.children[pid]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("no worker %d", pid)
}

// Signal signals a worker.
func (k *Keeper) Signal(in SignalArgs, out *Nothing) error {
	c, err := k.child(in.Pid)
	if err != nil {
		return err
	}
	return c.Signal(in.Signal)
}

// Wait waits for a worker's end.
func (k *Keeper) Wait(pid int, out *Ended) error {
	c, err := k.child(pid)
	if err == nil {
		out.How, out.OK = c.Wait()
	}
	return err
}

// Output returns the last part of a worker's output.
func (k *Keeper) Output(pid int, out *string) error {
	c, err := k.child(pid)
	if err == nil {
		*out = c.Output()
	}
	return err
}

// Forget empties Output.
func (k *Keeper) Forget(pid int, out *Nothing) error {
	c, err := k.child(pid)
	if err == nil {
		c.Forget()
	}
	return err
}

// Run runs a command and waits for its end.
func (k *Keeper) Run(command []string, out *RunOut) error {
	b, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	out.Output = strings.TrimSpace(string(b))
	if err != nil {
		out.Err = err.Error()
	}
	return nil
}
