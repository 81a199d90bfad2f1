package handshake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
	"gorail/backend/peer"
	"gorail/backend/trust"
)

const (
	openings    = 64          // connections with a part of an opening, of a listener
	perTicket   = 8           // connections with a whole opening that are looked at, of one ticket: only its peer knows that
	openingTime = time.Second // for an opening to be whole; an honest initiator that starved tries again
)

// Waiter waits for one connection of its peer. Its methods do not wait for the Listener.
type Waiter interface {
	// Ticket is what the peer names the waiter by. It stays the same, and works once.
	Ticket() trust.Ticket
	// Secret derives the secret of the link. The caller wipes it.
	Secret() *trust.LinkSecret
	// Attach passes the peer's connection. The waiter closes it. It may come after Forget, if Forget was late.
	Attach(c *Connection)
	// Broken says that the ticket is spent, and no connection came of it.
	Broken(err error)
}

// Listener accepts connections for those that wait. It is safe for concurrent use.
type Listener struct {
	l       *net.TCPListener
	limited atomic.Uint64 // connections that a bound ended
	done    chan struct{} // closed by Close

	mu        sync.Mutex
	waiting   map[trust.Ticket]Waiter
	places    places
	looked    map[trust.Ticket]int // connections whose opening is being looked at
	closed    bool
	pending   map[*net.TCPConn]bool // all that a goroutine has
	acceptErr error                 // accept's last error; nil: the last connection was accepted, or AcceptError has returned it
	wg        sync.WaitGroup
}

// Listen listens on the first free port of a range, or on one that the system chooses. It sets no TCP_DEFER_ACCEPT: the kernel would keep
// silent connections in its queue for SYNs, for a second and more. Without SYN cookies it drops honest SYNs while that is full: 2,500
// strangers a second locked a new peer out for 30 s. With cookies dials take as long with the option as without.
// Implements socket, bind, listen.
func (o Sockets) Listen(addr netip.Addr, first, last uint16) (*Listener, error) {
	var l net.Listener
	how := net.ListenConfig{Control: o.early, KeepAlive: -1} // Take sets keepalive: strangers' connections need none
	err := error(syscall.EADDRINUSE)
	for port := int(first); port <= int(last) && errors.Is(err, syscall.EADDRINUSE); port++ {
		l, err = how.Listen(context.Background(), "tcp", netip.AddrPortFrom(addr, uint16(port)).String())
	}
	if err != nil && first != 0 && errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: every port of option data_port=%d-%d is in use at %s: give a wider range, or each process of this host one of its own",
			err, first, last, addr)
	}
	if err != nil {
		return nil, err
	}
	s := &Listener{l: l.(*net.TCPListener), done: make(chan struct{}), waiting: map[trust.Ticket]Waiter{},
		places: places{sources: map[netip.Addr]int{}}, looked: map[trust.Ticket]int{}, pending: map[*net.TCPConn]bool{}}
	s.wg.Go(s.run)
	return s, nil
}

// Addr is where it listens.
func (s *Listener) Addr() netip.AddrPort {
	a := s.l.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Limited counts the connections that a bound ended.
func (s *Listener) Limited() uint64 { return s.limited.Load() }

// Expect lets one connection with the waiter's ticket in.
func (s *Listener) Expect(w Waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[w.Ticket()] = w
}

// Forget lets none in any more.
func (s *Listener) Forget(w Waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, w.Ticket())
}

// AcceptError returns the last error of accept, once.
func (s *Listener) AcceptError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.acceptErr
	s.acceptErr = nil
	return err
}

// Waiting returns how many waiters have no connection yet.
func (s *Listener) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

// run accepts connections. It waits for none of them: else strangers would fill the kernel's queue, and it would drop honest peers.
func (s *Listener) run() {
	pause := acceptPause
	for {
		c, err := s.l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			pause = s.pause(err, pause)
			continue
		}
		pause = acceptPause
		s.take(c)
	}
}

// take looks at what a new connection has sent. A whole opening needs no place, and what cannot become one is reset.
func (s *Listener) take(c *net.TCPConn) {
	var there [OpeningLen]byte
	n, err := readNow(c, there[:])
	switch {
	case err != nil || !bytes.HasPrefix(there[:n], magic[:min(n, len(magic))]):
		reset(c)
	case n == OpeningLen:
		s.look(c, there[:])
	default:
		s.await(c, there[:n])
	}
}

// readNow reads what has come, without waiting. Implements recv with MSG_DONTWAIT. The error is io.EOF at the end.
func readNow(c *net.TCPConn, b []byte) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var e error
	err = raw.Read(func(fd uintptr) bool {
		for n, e = unix.Read(int(fd), b); e == unix.EINTR; n, e = unix.Read(int(fd), b) {
		}
		return true // also without data
	})
	switch {
	case err != nil:
		return 0, err
	case e == unix.EAGAIN:
		return 0, nil
	case e != nil:
		return 0, e
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// look hands a connection with a whole opening to a goroutine, if somebody waits for it.
func (s *Listener) look(c *net.TCPConn, opening []byte) {
	t, err := ticketOf(opening)
	s.mu.Lock()
	known := err == nil && !s.closed && s.waiting[t] != nil
	if known && s.looked[t] == perTicket {
		known = false
		s.limited.Add(1)
	}
	if known {
		s.looked[t]++
		s.pending[c] = true
		s.wg.Go(func() {
			defer s.seen(c, t)
			s.admit(c, t, opening)
		})
	}
	s.mu.Unlock()
	if !known {
		reset(c)
	}
}

func (s *Listener) seen(c *net.TCPConn, t trust.Ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, c)
	if s.looked[t]--; s.looked[t] == 0 {
		delete(s.looked, t)
	}
}

// await takes a place for a connection, until the rest of its opening comes.
func (s *Listener) await(c *net.TCPConn, part []byte) {
	p := &place{c: c, source: peer.SourceOf(c.RemoteAddr())}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		reset(c)
		return
	}
	evicted := s.places.enter(p, host.Places(c, openings))
	s.pending[c] = true
	s.wg.Go(func() { s.rest(p, part) })
	s.mu.Unlock()
	for _, e := range evicted {
		s.limited.Add(1)
		reset(e.c)
	}
}

// rest reads the rest of an opening.
func (s *Listener) rest(p *place, part []byte) {
	opening := make([]byte, OpeningLen)
	n := copy(opening, part)
	_ = p.c.SetReadDeadline(time.Now().Add(openingTime))
	_, err := io.ReadFull(p.c, opening[n:])
	s.mu.Lock()
	stays := s.places.leave(p)
	delete(s.pending, p.c)
	s.mu.Unlock()
	if err != nil || !stays {
		reset(p.c)
		return
	}
	s.look(p.c, opening)
}

const (
	acceptPause  = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

// pause waits after an error of accept: most likely no descriptor is left. It returns the next pause.
func (s *Listener) pause(err error, pause time.Duration) time.Duration {
	if errors.Is(err, syscall.ECONNABORTED) { // the connection alone is gone
		return acceptPause
	}
	s.mu.Lock()
	s.acceptErr = err
	var shed *place
	if host.Exhausted(err) {
		shed = s.places.shed()
	}
	s.mu.Unlock()
	if shed != nil {
		s.limited.Add(1)
		reset(shed.c)
	}
	select {
	case <-s.done:
	case <-time.After(pause):
	}
	return min(2*pause, longestPause)
}

func source(c *net.TCPConn) netip.Addr {
	return c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// reset closes a connection without a word.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// admit checks the opening and hands the connection to the waiter that it names.
func (s *Listener) admit(c *net.TCPConn, t trust.Ticket, opening []byte) {
	_ = c.SetDeadline(time.Now().Add(openingTime))
	w := s.waiter(t)
	if w == nil {
		reset(c)
		return
	}
	secret := w.Secret()
	text, err := answer(opening, secret)
	secret.Wipe()
	if err != nil || !s.spend(w) {
		reset(c)
		return
	}
	if _, err := host.Send(c, text); err != nil {
		reset(c)
		w.Broken(err) // the ticket is spent: the link needs a fence
		return
	}
	w.Attach(connection(c, opening, text))
}

func (s *Listener) waiter(t trust.Ticket) Waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting[t]
}

// spend uses the waiter's ticket up. It returns false if another connection was faster.
func (s *Listener) spend(w Waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[w.Ticket()] != w {
		return false
	}
	delete(s.waiting, w.Ticket())
	return true
}

// Close ends the listener and all connections that have proved nothing. It returns after the last Attach.
func (s *Listener) Close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.pending {
		_ = c.Close()
	}
	s.mu.Unlock()
	close(s.done)
	_ = s.l.Close()
	s.wg.Wait()
}
