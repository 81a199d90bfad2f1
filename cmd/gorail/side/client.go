package side

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"gorail/cmd/gorail/plain"
	"gorail/internal/subprocess"
)

// Side is the driver's handle of a process.
type Side struct {
	*subprocess.Client
	Host string // the other host; "": this host
	Own  string // our address of the connection; "": no connection over a network
}

// Command is the argument that makes this program a side.
const Command = "bench-side"

// Spawn starts a process on this host.
func Spawn() (*Side, error) {
	c, err := subprocess.Start(subprocess.Options{Args: []string{Command}}, service)
	if err != nil {
		return nil, err
	}
	return &Side{Client: c}, nil
}

// Dial requests a process from the gorail bench --listen or gorail doctor --listen at HOST:PORT#TOKEN.
func Dial(addr string) (*Side, error) { return DialFor(addr, service) }

// DialFor is Dial for another service of the process.
func DialFor(addr, service string) (*Side, error) {
	at, token := SplitAddr(addr)
	conn, err := net.DialTimeout("tcp", at, 10*time.Second)
	if err != nil {
		return nil, fmt.Errorf("%w (is gorail bench --listen or gorail doctor --listen running there?)", err)
	}
	if err := present(conn, token); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", at, err), conn.Close())
	}
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	own, _, _ := net.SplitHostPort(conn.LocalAddr().String())
	b := &bounded{Conn: conn}
	c := subprocess.Connect(b, service, b)
	c.Answers(func(reply any, err error) error {
		plain.Value(reply)
		return plain.Error(err)
	})
	return &Side{c, host, own}, nil
}

// mostAnswer bounds what comes back for a command, in bytes. The longest answers are those of gorail study kv: some MiB.
const mostAnswer = 64 << 20

// bounded is a connection to a process of somebody else. It ends when more comes than mostAnswer since the last command.
type bounded struct {
	net.Conn
	came atomic.Int64
}

func (b *bounded) Write(p []byte) (int, error) {
	b.came.Store(0)
	return b.Conn.Write(p)
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if b.came.Add(int64(n)) > mostAnswer {
		return 0, fmt.Errorf("an answer of more than %d MiB", mostAnswer>>20)
	}
	return n, err
}

// Wait implements subprocess.Handle, as the methods below. The process is the listener's, which ends it.
func (b *bounded) Wait() (how string, ok bool) {
	if b.came.Load() > mostAnswer {
		return fmt.Sprintf("its connection was ended, because an answer has more than %d MiB", mostAnswer>>20), true
	}
	return "its connection has ended", true
}

// Pid is 0: the process may be of another host.
func (b *bounded) Pid() int { return 0 }

// Signal does nothing.
func (b *bounded) Signal(syscall.Signal) error { return nil }

// Output is empty: the listener prints it.
func (b *bounded) Output() string { return "" }

// Forget does nothing.
func (b *bounded) Forget() {}

// Greet checks that a process on another host understands this program.
func (s *Side) Greet() (HelloOut, error) {
	out, err := Call[HelloOut](s, "Hello", HelloArgs{Protocol}, 10*time.Second)
	if err != nil && strings.Contains(err.Error(), "can't find method") {
		err = errors.New("it answers as an earlier version of gorail")
	}
	if err == nil && out.Protocol != Protocol {
		err = fmt.Errorf("its commands have version %d, ours %d", out.Protocol, Protocol)
	}
	if err != nil {
		err = fmt.Errorf("gorail on %s: %w; install the same version on both hosts", s.Host, err)
	}
	return out, err
}

// Call runs a command and waits for its end. A process that misses the limit is killed.
func Call[R any](s *Side, method string, args any, limit time.Duration) (R, error) {
	out, err := subprocess.Call[R](s.Client, method, args, limit)
	if gone, ok := errors.AsType[*subprocess.Gone](err); ok {
		err = fmt.Errorf("%w\n%s", gone, lastOf(s.Output()))
	}
	return out, err
}

// Warnings returns what backends of a process on this host have logged as warnings or errors, the last ones.
func (s *Side) Warnings() (out []string) {
	for line := range strings.Lines(s.Output()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out[max(0, len(out)-mostWarnings):]
}

const mostWarnings = 3

// lastOf returns the end of a process's output.
func lastOf(said string) string { return said[max(0, len(said)-4096):] }

// Close asks the process to release everything, and waits for its end.
func (s *Side) Close() error {
	_, err := Call[None](s, "Close", None{}, 20*time.Second)
	s.End(10 * time.Second)
	return err
}
