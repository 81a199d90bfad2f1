package handshake

import (
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

	"gorail/backend/nosignal"
	"gorail/backend/trust"
)

const (
	openings    = 64          // connections that have proved nothing, of a listener
	perSource   = 8           // of them, from one address
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
	limited atomic.Uint64 // connections that a bound refused or held up
	places  chan struct{} // one for each opening
	done    chan struct{} // closed by Close

	mu        sync.Mutex
	waiting   map[trust.Ticket]Waiter
	sources   map[netip.Addr]int
	closed    bool
	pending   map[*net.TCPConn]bool
	acceptErr error // accept's last error; nil: the last connection was accepted, or AcceptError has returned it
	wg        sync.WaitGroup
}

// Listen listens on the first free port of a range, or on one that the system chooses. Implements socket, bind, listen.
func (o Sockets) Listen(addr netip.Addr, first, last uint16) (*Listener, error) {
	var l net.Listener
	how := net.ListenConfig{Control: o.early}
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
	s := &Listener{l: l.(*net.TCPListener), places: make(chan struct{}, openings), done: make(chan struct{}), waiting: map[trust.Ticket]Waiter{},
		sources: map[netip.Addr]int{}, pending: map[*net.TCPConn]bool{}}
	s.wg.Go(s.run)
	return s, nil
}

// Addr is where it listens.
func (s *Listener) Addr() netip.AddrPort {
	a := s.l.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Limited counts the connections that a bound refused or held up.
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

// run accepts connections. While all places are taken it accepts none, and the kernel keeps them waiting.
func (s *Listener) run() {
	pause := acceptPause
	for {
		select {
		case s.places <- struct{}{}:
		default:
			s.limited.Add(1)
			s.places <- struct{}{}
		}
		c, err := s.l.AcceptTCP() //limit:tcp_openings
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-s.places
			pause = s.rest(err, pause)
			continue
		}
		pause = acceptPause
		from := source(c)
		if !s.enter(c, from) {
			reset(c)
			<-s.places
			continue
		}
		s.wg.Go(func() {
			defer s.leave(c, from)
			s.admit(c)
		})
	}
}

const (
	acceptPause  = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

// rest waits after an error of accept: most likely no descriptor is left. It returns the next pause.
func (s *Listener) rest(err error, pause time.Duration) time.Duration {
	if errors.Is(err, syscall.ECONNABORTED) { // the connection alone is gone
		return acceptPause
	}
	s.mu.Lock()
	s.acceptErr = err
	s.mu.Unlock()
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

func (s *Listener) enter(c *net.TCPConn, from netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if s.sources[from] >= perSource {
		s.limited.Add(1)
		return false
	}
	s.sources[from]++
	s.pending[c] = true
	return true
}

func (s *Listener) leave(c *net.TCPConn, from netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sources[from]--; s.sources[from] == 0 {
		delete(s.sources, from)
	}
	delete(s.pending, c)
	<-s.places
}

// admit reads the opening and hands the connection to the waiter that it names.
func (s *Listener) admit(c *net.TCPConn) {
	opening := make([]byte, OpeningLen)
	_ = c.SetDeadline(time.Now().Add(openingTime))
	if _, err := io.ReadFull(c, opening); err != nil {
		reset(c)
		return
	}
	t, err := ticketOf(opening)
	w := s.waiter(t)
	if err != nil || w == nil {
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
	if _, err := nosignal.Send(c, text); err != nil {
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
