package side

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"gorail/gorail/door"
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

// Dial requests a process from the gorail bench --listen or gorail doctor --listen at a place.
func Dial(at door.Place) (*Side, error) { return DialFor(at, service) }

// DialFor is Dial for another service of the process.
func DialFor(at door.Place, name string) (*Side, error) {
	conn, err := door.Dial(at)
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	own, _, _ := net.SplitHostPort(conn.LocalAddr().String())
	c := subprocess.ConnectFar(conn, name, nil, door.Answers(name != service))
	c.Beat(service+".Alive", door.Usual.Idle/6) // a point may take longer than Idle
	return &Side{c, host, own}, nil
}

// Listen starts a target for each caller with the token until accepting fails. Package door says what callers may ask for.
func Listen(l *door.Listener) error { return ListenAs(l, Command) }

// ListenAs is Listen with another argument than Command: that process serves more than a Server does.
func ListenAs(l *door.Listener, command string) error {
	remote := subprocess.Options{Args: []string{command}, Setenv: []string{envRemote + "=1"}, Verbose: true}
	return l.Serve(func(conn *net.TCPConn) (door.Process, error) {
		f, err := conn.File()
		if err != nil {
			return nil, err
		}
		defer f.Close()
		p, err := subprocess.Exec(remote, f)
		if err != nil {
			return nil, err
		}
		return p, nil
	})
}

// Greet checks that a process on another host understands this program.
func (s *Side) Greet() (HelloOut, error) {
	out, err := Call[HelloOut](s, "Hello", HelloArgs{Protocol}, 10*time.Second)
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
