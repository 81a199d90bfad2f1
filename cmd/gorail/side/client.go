package side

import (
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Side is a process as the driver sees it.
type Side struct {
	rpc  *rpc.Client
	cmd  *exec.Cmd // nil: on another host
	out  tail
	Host string // the other host; "": this one
}

// tail keeps the end of what a process printed.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if n := len(t.b) - 4096; n > 0 {
		t.b = t.b[n:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}

// Command is what this program is called with to be a side.
const Command = "bench-side"

// command runs this program as a side that talks over f.
func command(f *os.File, setenv ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", Command)
	cmd.Env = append(os.Environ(), setenv...)
	cmd.ExtraFiles = []*os.File{f}
	cmd.WaitDelay = time.Second
	return cmd
}

// Spawn starts a process on this host.
func Spawn() (*Side, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	here, there := os.NewFile(uintptr(pair[0]), "side"), os.NewFile(uintptr(pair[1]), "driver")
	defer here.Close()
	defer there.Close()
	s := &Side{cmd: command(there)}
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	conn, err := net.FileConn(here)
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s.rpc = rpc.NewClient(conn)
	return s, nil
}

// Dial asks the gorail bench --listen at addr for a process there.
func Dial(addr string) (*Side, error) {
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return nil, fmt.Errorf("%w (is gorail bench --listen running there?)", err)
	}
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	return &Side{rpc: rpc.NewClient(conn), Host: host}, nil
}

// Listen starts a target for each connection until accepting fails. A caller decides which backend is loaded and how much memory is
// taken: only for networks whose hosts trust each other.
func Listen(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		f, err := conn.(*net.TCPConn).File()
		_ = conn.Close()
		if err != nil {
			return err
		}
		cmd := command(f, envRemote+"=1")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		err = cmd.Start()
		_ = f.Close()
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "target for %s: process %d\n", conn.RemoteAddr(), cmd.Process.Pid)
		go func() { _ = cmd.Wait() }()
	}
}

// Call gives a command and waits for its end; a process that misses the limit is of no use any more and is killed.
func Call[R any](s *Side, method string, args any, limit time.Duration) (out R, err error) {
	c := s.rpc.Go(service+"."+method, args, &out, make(chan *rpc.Call, 1))
	select {
	case <-c.Done:
		if _, answered := errors.AsType[rpc.ServerError](c.Error); c.Error != nil && !answered {
			s.Kill()
			return out, fmt.Errorf("the process died in %s\n%s", method, s.out.String())
		}
		return out, c.Error
	case <-time.After(limit):
		s.Kill()
		return *new(R), fmt.Errorf("%s: no answer within %v\n%s", method, limit, s.out.String())
	}
}

// End asks the process to give everything back, and waits for its end.
func (s *Side) End() error {
	_, err := Call[None](s, "Close", None{}, 20*time.Second)
	_ = s.rpc.Close()
	if s.cmd != nil {
		t := time.AfterFunc(10*time.Second, func() { _ = s.cmd.Process.Kill() })
		defer t.Stop()
		_ = s.cmd.Wait()
	}
	return err
}

// Kill ends it at once.
func (s *Side) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
	}
	_ = s.rpc.Close()
}
