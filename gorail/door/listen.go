package door

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/gorail/live"
)

// Bounds bound the callers of a listener.
type Bounds struct {
	Openings  int           // connections at a time whose caller has not proved the token
	Opening   time.Duration // for the proof
	Slow      time.Duration // before the answer to a wrong token
	Processes int           // that serve at a time
	All       int           // that serve until the listener ends
	Idle      time.Duration // a process whose caller sends nothing ends, unless a command is at work
	Whole     time.Duration // a process ends
}

// Usual are the bounds of gorail bench --listen and gorail doctor --listen. The largest study asks for 32 processes at a time; a benchmark asks
// for some in each turn of a backend. A caller is silent while its own processes run a point (gorail bench --timeout).
var Usual = Bounds{Openings: 64, Opening: 10 * time.Second, Slow: time.Second, Processes: 32, All: 10_000, Idle: 30 * time.Minute, Whole: 12 * time.Hour}

// Process serves a caller. subprocess.Process is one.
type Process interface {
	Pid() int
	Signal(syscall.Signal) error
	Wait() (how string, ok bool)
}

// Listener lets callers in. Its methods are safe for concurrent use.
type Listener struct {
	Bounds
	net   *net.TCPListener
	token string
	log   io.Writer

	mu       sync.Mutex // guards those below
	openings []*opening // the oldest first
	serving  int
	all      int
	wrong    int // tokens since the last line about them
	said     time.Time
}

// opening is a caller without a proof.
type opening struct {
	net.Conn
	source netip.Prefix
}

// Listen listens at an address, with a new token. A port alone is that of the loopback interface. log gets a line for each caller.
func Listen(addr string, log io.Writer) (*Listener, error) {
	at, err := listenAt(addr)
	if err != nil {
		return nil, err
	}
	family := "tcp"
	if host, _, _ := net.SplitHostPort(at); net.ParseIP(host).To4() != nil {
		family = "tcp4" // Go would take 0.0.0.0 for all addresses of IPv6, too
	}
	l, err := net.Listen(family, at)
	if err != nil {
		return nil, err
	}
	return &Listener{Bounds: Usual, net: l.(*net.TCPListener), token: newToken(), log: log}, nil
}

// Place is host:port#TOKEN, for a caller.
func (l *Listener) Place() string { return l.net.Addr().String() + "#" + l.token }

// Announce writes what a caller is to be given, and who can reach the listener. what is the caller's command without the place.
func (l *Listener) Announce(what string) {
	fmt.Fprintf(l.log, "%s %s\n", what, l.Place())
	fmt.Fprintf(l.log, "the part after # is this listener's token, for its callers alone; %s=TOKEN in their environment keeps it out of lists of processes\n", EnvToken)
	if who := reach(l.net.Addr()); who != "" {
		fmt.Fprintf(l.log, "warning: %s can connect here. Who has the token gets processes of uid %d; the connection is not encrypted\n", who, os.Geteuid())
	} else {
		fmt.Fprintln(l.log, "only this host can connect here; name an address of this host for others: --listen ADDRESS:PORT")
	}
}

// Close ends Serve. Processes that serve go on.
func (l *Listener) Close() error { return l.net.Close() }

// Serve lets callers in until accepting fails, and starts a process for each. start does not keep the connection.
func (l *Listener) Serve(start func(*net.TCPConn) (Process, error)) error {
	for {
		c, err := l.net.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // such as no descriptor
			l.say("a connection is not accepted: %v", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		o := l.open(c)
		go func() {
			l.caller(o, c, start)
			_ = c.Close()
		}()
	}
}

// open gives a connection a place. If there is none, the oldest opening of the source with the most loses its own.
func (l *Listener) open(c *net.TCPConn) *opening {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := &opening{c, sourceOf(c.RemoteAddr())}
	l.openings = append(l.openings, o)
	if len(l.openings) <= l.Openings {
		return o
	}
	count, most := map[netip.Prefix]int{}, o.source
	for _, other := range l.openings {
		if count[other.source]++; count[other.source] > count[most] {
			most = other.source
		}
	}
	i := slices.IndexFunc(l.openings, func(other *opening) bool { return other.source == most })
	_ = l.openings[i].Close()
	l.openings = slices.Delete(l.openings, i, i+1)
	return o
}

// sourceOf is an address, of IPv6 its /64.
func sourceOf(a net.Addr) netip.Prefix {
	t, _ := a.(*net.TCPAddr)
	if t == nil {
		return netip.Prefix{}
	}
	at := t.AddrPort().Addr().Unmap().WithZone("")
	bits := 32
	if at.Is6() {
		bits = 64
	}
	p, _ := at.Prefix(bits)
	return p
}

func (l *Listener) left(o *opening) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.openings = slices.DeleteFunc(l.openings, func(other *opening) bool { return other == o })
}

// caller serves one connection.
func (l *Listener) caller(o *opening, c *net.TCPConn, start func(*net.TCPConn) (Process, error)) {
	defer l.left(o)
	_ = c.SetDeadline(time.Now().Add(l.Opening))
	numbers, ok, err := greeted(c, l.token)
	if err != nil {
		return
	}
	if !ok {
		l.wrongToken(c)
		time.Sleep(l.Slow) // with its place
		_ = tell(c, l.token, unproved, numbers)
		return
	}
	l.left(o)
	answer := l.enter()
	if answer != welcome {
		_ = tell(c, l.token, answer, numbers)
		return
	}
	defer l.leave()
	from := c.RemoteAddr()
	err = l.alive(c)
	var p Process
	if err == nil {
		p, err = start(c)
	}
	if err != nil {
		l.say("no process for %s: %v", from, err)
		_ = tell(c, l.token, broken, numbers)
		return
	}
	_ = tell(c, l.token, welcome, numbers) // the process says nothing before a command
	_ = c.Close()
	l.say("process %d serves %s", p.Pid(), from)
	end := time.AfterFunc(l.Whole, func() {
		l.say("process %d is ended: it has served %s for %v", p.Pid(), from, l.Whole)
		_ = p.Signal(syscall.SIGKILL)
	})
	defer end.Stop()
	p.Wait()
}

// enter takes a place for a process.
func (l *Listener) enter() byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.all >= l.All:
		return spent
	case l.serving >= l.Processes:
		return busy
	}
	l.all, l.serving = l.all+1, l.serving+1
	return welcome
}

func (l *Listener) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serving--
}

// The kernel ends a connection whose other host is gone after about this time.
const (
	keepIdle  = 30 // seconds
	keepEach  = 10 // seconds
	keepCount = 6
)

// alive lets the socket end when the caller's host is gone, when the caller takes no answer, and after Idle without a command.
func (l *Listener) alive(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	idle, send := unix.NsecToTimeval(int64(l.Idle)), unix.NsecToTimeval(int64(time.Minute))
	var failed error
	err = raw.Control(func(fd uintptr) {
		s := int(fd)
		failed = errors.Join(unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &idle), unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &send),
			unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1), unix.SetsockoptInt(s, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepIdle),
			unix.SetsockoptInt(s, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepEach), unix.SetsockoptInt(s, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepCount))
	})
	return errors.Join(err, failed)
}

// wrongToken logs callers with wrong tokens, once a second at most.
func (l *Listener) wrongToken(c net.Conn) {
	l.mu.Lock()
	l.wrong++
	n, quiet := l.wrong, time.Since(l.said) < time.Second
	if !quiet {
		l.wrong, l.said = 0, time.Now()
	}
	l.mu.Unlock()
	if !quiet {
		l.say("%d wrong tokens, the last one from %s", n, c.RemoteAddr())
	}
}

func (l *Listener) say(format string, args ...any) {
	fmt.Fprintln(l.log, live.Printable(fmt.Sprintf(format, args...)))
}
