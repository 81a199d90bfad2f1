package worker

import (
	"fmt"
	"net"
	"net/rpc"
	"syscall"
	"time"

	"gorail/internal/subprocess"
	"gorail/test/testenv"
)

// Host is another machine. Its keeper (see EnvKeep) starts workers for a test.
type Host struct{ rpc *rpc.Client }

// Dial connects to a host's keeper. The keeper may still be starting.
func Dial(addr string) (*Host, error) {
	for end := time.Now().Add(Deadline); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			return &Host{rpc.NewClient(c)}, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("keeper: %w", err)
		}
	}
}

// Close ends the keeper and all its workers.
func (h *Host) Close() { _ = h.rpc.Close() }

// ask runs one command with a time limit, as the host may be unreachable.
func (h *Host) ask(method string, args, reply any, limit time.Duration) error {
	select {
	case c := <-h.rpc.Go(keeper+"."+method, args, reply, make(chan *rpc.Call, 1)).Done:
		return c.Error
	case <-time.After(limit):
		return fmt.Errorf("keeper: no answer to %s in %v", method, limit)
	}
}

// Start starts a worker on the host. The test's cleanup ends it. o.Env must be valid on the host, too. o.Stderr is
// ignored.
func (h *Host) Start(t testenv.TB, o Options) *Worker {
	t.Helper()
	var s Started
	err := h.ask("Start", StartArgs{o.Env, o.Setenv, o.Verbose, o.Attr}, &s, Deadline)
	var c net.Conn
	if err == nil {
		c, err = net.DialTimeout("tcp", s.Addr, Deadline)
	}
	if err != nil {
		t.Fatalf("worker: %v", err)
	}
	return supervise(t, subprocess.Connect(c, service, &remoteWorker{h, s.Pid}))
}

// Run runs a command on the host and returns its output. Any status but 0 fails the test.
func (h *Host) Run(t testenv.TB, command ...string) string {
	t.Helper()
	var out RunOut
	if err := h.ask("Run", command, &out, Deadline); err != nil {
		t.Fatalf("%q: %v", command, err)
	}
	if out.Err != "" {
		t.Fatalf("%q: %s\n%s", command, out.Err, out.Output)
	}
	return out.Output
}

// remoteWorker is the handle of a worker on another host.
type remoteWorker struct {
	h  *Host
	id int
}

func (d *remoteWorker) Pid() int { return d.id }

func (d *remoteWorker) Signal(s syscall.Signal) error {
	return d.h.ask("Signal", SignalArgs{d.id, s}, new(Nothing), grace)
}

func (d *remoteWorker) Wait() (how string, ok bool) {
	var e Ended
	if err := d.h.ask("Wait", d.id, &e, grace); err != nil {
		return err.Error(), false
	}
	return e.How, e.OK
}

func (d *remoteWorker) Output() string {
	var s string
	if err := d.h.ask("Output", d.id, &s, grace); err != nil {
		return err.Error()
	}
	return s
}

func (d *remoteWorker) Forget() { _ = d.h.ask("Forget", d.id, new(Nothing), grace) }
