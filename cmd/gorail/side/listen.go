package side

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"gorail/backend/option"
	"gorail/internal/subprocess"
)

const (
	mostCallers   = 16             // connections that have not shown the token; one more ends the oldest
	mostProcesses = 64             // at a time
	longest       = 12 * time.Hour // of a process
)

// Listener is gorail bench --listen and gorail doctor --listen: it starts a process for each caller that has its token. Such a caller
// chooses the backend and the amount of memory.
type Listener struct {
	l     net.Listener
	token []byte
	log   io.Writer

	mu      sync.Mutex
	callers []net.Conn // oldest first
	running int
}

// Listen listens at an address. A port alone is one of the loopback interface: other hosts reach what names an address. The token is new.
// log gets warnings and what the processes print.
func Listen(addr string, log io.Writer) (*Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: write HOST:PORT, or :PORT for this host alone", addr)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, err
	}
	return On(l, log), nil
}

// On is Listen with a listener.
func On(l net.Listener, log io.Writer) *Listener { return &Listener{l: l, token: newToken(), log: log} }

// Addr is what a caller gives: HOST:PORT#TOKEN.
func (s *Listener) Addr() string { return s.l.Addr().String() + "#" + hex.EncodeToString(s.token) }

// Open says who may connect, if that is not this host alone; "": it is.
func (s *Listener) Open() string {
	a, ok := s.l.Addr().(*net.TCPAddr)
	if ok && a.IP.IsLoopback() {
		return ""
	}
	return "every host that reaches this address may connect. Who has the token starts processes here, as this user; what they say is not encrypted"
}

// Prove asks a caller for the token, and shows that we have it. Serve does that for each.
func (s *Listener) Prove(c net.Conn) error { return admit(c, s.token) }

// Close ends Serve. Processes go on.
func (s *Listener) Close() error { return s.l.Close() }

// Serve starts this program with the argument command for each caller that shows the token, until accepting fails.
func (s *Listener) Serve(command string) error {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return err
		}
		s.enter(c)
		go s.caller(c, command)
	}
}

func (s *Listener) enter(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.callers) == mostCallers {
		_ = s.callers[0].Close()
		s.callers = s.callers[1:]
	}
	s.callers = append(s.callers, c)
}

// leave takes a connection from those without a proof. It returns false if it was ended for another, or no process may start.
func (s *Listener) leave(c net.Conn, start bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.callers {
		if other != c {
			continue
		}
		s.callers = append(s.callers[:i:i], s.callers[i+1:]...)
		if start && s.running == mostProcesses {
			return fmt.Errorf("%d processes are running, and no more may", mostProcesses)
		}
		if start {
			s.running++
		}
		return nil
	}
	return net.ErrClosed
}

func (s *Listener) caller(c net.Conn, command string) {
	defer c.Close()
	refused := s.Prove(c)
	if err := s.leave(c, refused == nil); err != nil || refused != nil {
		if err = errors.Join(refused, err); errors.Is(err, errToken) || refused == nil {
			fmt.Fprintf(s.log, "refused %s: %v\n", c.RemoteAddr(), err)
		}
		return
	}
	defer func() {
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
	}()
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		fmt.Fprintln(s.log, err)
		return
	}
	p, err := subprocess.Exec(subprocess.Options{Args: []string{command}, Setenv: []string{envRemote + "=1"}, Verbose: true}, f)
	_ = f.Close()
	if err != nil {
		fmt.Fprintln(s.log, err)
		return
	}
	_ = c.Close() // the process has it
	fmt.Fprintf(s.log, "process %d serves %s\n", p.Pid(), c.RemoteAddr())
	end := time.AfterFunc(longest, func() { _ = p.Signal(syscall.SIGKILL) })
	defer end.Stop()
	p.Wait()
}

// FromAfar checks what a caller on another host asks for: nothing of it may name a file here, which would be read, written or loaded.
// Environment variables, folders and files are set where --listen runs.
func FromAfar(backend string, params, env map[string]string) error {
	const there = "set it where --listen runs, for all callers"
	for name := range env {
		return fmt.Errorf("environment variable %s: %s", name, there)
	}
	if strings.ContainsFunc(backend, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		return fmt.Errorf("backend %q: not the name of a backend", backend)
	}
	for name, value := range params {
		if namesFile(name, value) {
			return fmt.Errorf("parameter %s=%s names a file or a folder: %s (GORAIL_%s)", name, value, there, strings.ToUpper(name))
		}
	}
	return nil
}

// namesFile says that a parameter names a file or a folder. Of parameters of other backends nothing is known.
func namesFile(name, value string) bool {
	o, ok := option.Lookup(name)
	if !ok {
		return strings.Contains(value, "/")
	}
	return o.Type == "path" && value != o.Default && value != "auto" && value != "off"
}

// remote says that the driver is on another host.
func remote() bool { return os.Getenv(envRemote) != "" }
