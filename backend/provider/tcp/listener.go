package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gorail/backend/trust"
)

const (
	openings    = 64          // connections that have proved nothing, of a rail
	perSource   = 8           // of them, from one address
	openingTime = time.Second // for an opening to be whole; an honest initiator that starved tries again
)

// listener accepts connections for the rail's endpoints that wait for their peer. A connection names an endpoint by its ticket,
// which works once.
type listener struct {
	l       *net.TCPListener
	limited atomic.Uint64 // connections that a bound refused or held up
	places  chan struct{} // one for each opening

	mu      sync.Mutex
	waiting map[trust.Ticket]*endpoint
	sources map[netip.Addr]int
	closed  bool
	pending map[*net.TCPConn]bool
	wg      sync.WaitGroup
}

// listen listens on the first free port of a range, or on one that the system chooses. Implements socket, bind, listen.
func listen(addr netip.Addr, first, last uint16) (*listener, error) {
	var l *net.TCPListener
	err := error(syscall.EADDRINUSE)
	for port := int(first); port <= int(last) && errors.Is(err, syscall.EADDRINUSE); port++ {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, uint16(port))))
	}
	if err != nil && first != 0 && errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: every port of option data_port=%d-%d is in use at %s: give a wider range, or each process of this host one of its own",
			err, first, last, addr)
	}
	if err != nil {
		return nil, err
	}
	s := &listener{l: l, places: make(chan struct{}, openings), waiting: map[trust.Ticket]*endpoint{}, sources: map[netip.Addr]int{},
		pending: map[*net.TCPConn]bool{}}
	s.wg.Go(s.run)
	return s, nil
}

func (s *listener) addr() netip.AddrPort {
	a := s.l.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// expect lets a connection with the endpoint's ticket in.
func (s *listener) expect(e *endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[e.ticket] = e
}

// forget lets nobody in any more.
func (s *listener) forget(e *endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, e.ticket)
}

// run accepts connections. While all places are taken it accepts none, and the kernel keeps them waiting.
func (s *listener) run() {
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
		if err != nil { // no descriptor, or the connection is gone
			<-s.places
			time.Sleep(10 * time.Millisecond)
			continue
		}
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

func source(c *net.TCPConn) netip.Addr {
	return c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// reset closes a connection without a word.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

func (s *listener) enter(c *net.TCPConn, from netip.Addr) bool {
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

func (s *listener) leave(c *net.TCPConn, from netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sources[from]--; s.sources[from] == 0 {
		delete(s.sources, from)
	}
	delete(s.pending, c)
	<-s.places
}

// admit reads the opening and hands the connection to the endpoint that it names.
func (s *listener) admit(c *net.TCPConn) {
	opening := make([]byte, openingLen)
	_ = c.SetDeadline(time.Now().Add(openingTime))
	if _, err := io.ReadFull(c, opening); err != nil {
		reset(c)
		return
	}
	t, err := ticketOf(opening)
	e := s.endpoint(t)
	if err != nil || e == nil {
		reset(c)
		return
	}
	var text []byte
	err = e.prove(func(secret *trust.LinkSecret) (err error) { text, err = answer(opening, secret); return err })
	if err != nil || !s.spend(e) {
		reset(c)
		return
	}
	if _, err := c.Write(text); err != nil {
		reset(c)
		e.broken(err) // the ticket is spent: the link needs a fence
		return
	}
	e.attach(c)
}

func (s *listener) endpoint(t trust.Ticket) *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting[t]
}

// spend uses the endpoint's ticket up. It returns false if another connection was faster.
func (s *listener) spend(e *endpoint) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[e.ticket] != e {
		return false
	}
	delete(s.waiting, e.ticket)
	return true
}

// close ends the listener and all connections that have proved nothing.
func (s *listener) close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.pending {
		_ = c.Close()
	}
	s.mu.Unlock()
	_ = s.l.Close()
	s.wg.Wait()
}
