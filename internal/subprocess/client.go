package subprocess

import (
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Client sends commands to a process. Its methods are safe for concurrent use.
type Client struct {
	Handle
	service string
	rpc     *rpc.Client
	ended   atomic.Bool // by End or Kill
}

// Start starts a process on this host. The caller ends it with End or Kill.
func Start(o Options, service string) (*Client, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	here, there := os.NewFile(uintptr(pair[0]), "commands"), os.NewFile(uintptr(pair[1]), "commands")
	defer here.Close()
	defer there.Close()
	conn, err := net.FileConn(here)
	if err != nil {
		return nil, err
	}
	p, err := Exec(o, there)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return Connect(conn, service, p), nil
}

// Connect sends commands over a connection to a process. h may be nil if another program ends the process.
func Connect(conn net.Conn, service string, h Handle) *Client {
	return ConnectFar(conn, service, h, Far{})
}

// ConnectFar is Connect with bounds for what the process answers.
func ConnectFar(conn net.Conn, service string, h Handle, far Far) *Client {
	if h == nil {
		h = unowned{}
	}
	return &Client{Handle: h, service: service, rpc: rpc.NewClientWithCodec(newCodec(conn, far))}
}

// unowned is the handle of a process that another program ends.
type unowned struct{}

func (unowned) Pid() int                    { return 0 }
func (unowned) Signal(syscall.Signal) error { return nil }
func (unowned) Wait() (how string, ok bool) { return "its connection has ended", true }
func (unowned) Output() string              { return "" }
func (unowned) Forget()                     {}

// Beat sends a command now and then, for a process that ends when its caller is silent for long. It ends with the connection.
func (c *Client) Beat(method string, every time.Duration) {
	go func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for <-t.C; !c.ended.Load(); <-t.C {
			call := <-c.rpc.Go(method, struct{}{}, new(struct{}), make(chan *rpc.Call, 1)).Done
			if _, answered := errors.AsType[rpc.ServerError](call.Error); call.Error != nil && !answered {
				return
			}
		}
	}()
}

// End closes the connection, which ends a serving process, and waits for its end. A process that takes longer than
// limit is killed. End does nothing after Kill.
func (c *Client) End(limit time.Duration) {
	if c.ended.Swap(true) {
		return
	}
	_ = c.Signal(syscall.SIGCONT)
	_ = c.rpc.Close()
	t := time.AfterFunc(limit, func() { _ = c.Signal(syscall.SIGKILL) })
	defer t.Stop()
	c.Wait()
}

// Kill sends SIGKILL and waits for the end.
func (c *Client) Kill() {
	c.ended.Store(true)
	_ = c.Signal(syscall.SIGKILL)
	c.Wait()
	_ = c.rpc.Close()
}

// quit sends SIGQUIT to a process that does not answer, so that its output says what its goroutines do. It waits for its end for 10 s at most.
func (c *Client) quit() {
	c.ended.Store(true)
	gone := make(chan struct{})
	_ = c.Signal(syscall.SIGQUIT)
	go func() {
		defer close(gone)
		c.Wait()
	}()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
	}
}

// Future is a running command.
type Future[R any] struct {
	c      *Client
	method string
	call   *rpc.Call
	end    time.Time
}

// Go starts a command with a deadline of limit.
func Go[R any](c *Client, method string, args any, limit time.Duration) *Future[R] {
	f := &Future[R]{c: c, method: method, end: time.Now().Add(limit)}
	f.call = c.rpc.Go(c.service+"."+method, args, new(R), make(chan *rpc.Call, 1))
	return f
}

// Ended reports that Result would not wait.
func (f *Future[R]) Ended() bool { return len(f.call.Done) > 0 }

// Call runs a command and waits for its end.
func Call[R any](c *Client, method string, args any, limit time.Duration) (R, error) {
	return Go[R](c, method, args, limit).Result()
}

// Gone is the error of a command if the process died before its answer or did not answer in time.
type Gone struct{ Method, How string }

func (e *Gone) Error() string { return fmt.Sprintf("the process died in %s: %s", e.Method, e.How) }

// Result waits for the reply. The error is a Gone or the process's answer. A process that died or missed the limit has
// ended when Result returns. Call it once.
func (f *Future[R]) Result() (out R, err error) {
	limit := time.Until(f.end)
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case call := <-f.call.Done:
		if call.Error == nil {
			return *call.Reply.(*R), nil
		}
		if _, answered := errors.AsType[rpc.ServerError](call.Error); answered || f.c.ended.Load() {
			return out, call.Error
		}
		f.c.Kill()
		how, _ := f.c.Wait()
		if strings.Contains(call.Error.Error(), ErrTooLong.Error()) { // net/rpc keeps the text alone
			how = "it was given up: an answer is " + strings.TrimPrefix(call.Error.Error(), "reading body ")
		}
		return out, &Gone{f.method, how}
	case <-timer.C:
		f.c.quit()
		f.c.Kill()
		return out, &Gone{f.method, fmt.Sprintf("no answer within %v, so it was killed", limit.Round(time.Millisecond))}
	}
}
