package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/trust"
)

const (
	mostOpenings = 64               // connections with a part of an opening, of a listener
	mostOfTicket = 8                // connections with a whole opening that are looked at, of one ticket: only its peer knows that
	openingTime  = time.Second      // for an opening to be whole; an honest initiator that starved tries again
	sendTime     = 30 * time.Second // for an answer, for which an empty socket has room
)

// waiter waits for one connection of its peer. Its functions do not wait for the listener.
type waiter struct {
	ticket trust.Ticket             // what the peer names the waiter by; it works once
	secret func() *trust.LinkSecret // derives the secret of the link; the caller wipes it
	attach func(c *connection)      // takes the peer's connection, and closes it; may come after Forget, if Forget was late
	broken func(err error)          // the ticket is spent, and no connection came of it
}

// listener accepts connections for those that wait. It is safe for concurrent use.
type listener struct {
	l       *net.TCPListener
	limited atomic.Uint64 // connections that a bound ended
	done    chan struct{} // closed by Close

	mu        sync.Mutex
	waiting   map[trust.Ticket]*waiter
	places    openingPlaces
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
func (o sockets) Listen(addr netip.Addr, first, last uint16) (*listener, error) {
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
	s := &listener{l: l.(*net.TCPListener), done: make(chan struct{}), waiting: map[trust.Ticket]*waiter{},
		places: openingPlaces{sources: map[netip.Addr]int{}}, looked: map[trust.Ticket]int{}, pending: map[*net.TCPConn]bool{}}
	s.wg.Go(s.run)
	return s, nil
}

// Addr is where it listens.
func (s *listener) Addr() netip.AddrPort {
	a := s.l.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Limited counts the connections that a bound ended.
func (s *listener) Limited() uint64 { return s.limited.Load() }

// Expect lets one connection with the waiter's ticket in.
func (s *listener) Expect(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[w.ticket] = w
}

// Forget lets none in any more.
func (s *listener) Forget(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, w.ticket)
}

// AcceptError returns the last error of accept, once.
func (s *listener) AcceptError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.acceptErr
	s.acceptErr = nil
	return err
}

// Waiting returns how many waiters have no connection yet.
func (s *listener) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

// run accepts connections. It waits for none of them: else strangers would fill the kernel's queue, and it would drop honest peers.
func (s *listener) run() {
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
func (s *listener) take(c *net.TCPConn) {
	var there [openingLen]byte
	n, err := readNow(c, there[:])
	switch {
	case err != nil || !bytes.HasPrefix(there[:n], openingMagic[:min(n, len(openingMagic))]):
		resetConn(c)
	case n == openingLen:
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
func (s *listener) look(c *net.TCPConn, opening []byte) {
	t, err := openingTicket(opening)
	s.mu.Lock()
	known := err == nil && !s.closed && s.waiting[t] != nil
	if known && s.looked[t] == mostOfTicket {
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
		resetConn(c)
	}
}

func (s *listener) seen(c *net.TCPConn, t trust.Ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, c)
	if s.looked[t]--; s.looked[t] == 0 {
		delete(s.looked, t)
	}
}

// await takes a place for a connection, until the rest of its opening comes.
func (s *listener) await(c *net.TCPConn, part []byte) {
	p := &openingPlace{c: c, source: peer.SourceOf(c.RemoteAddr())}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		resetConn(c)
		return
	}
	evicted := s.places.enter(p, host.Places(c, mostOpenings))
	s.pending[c] = true
	s.wg.Go(func() { s.rest(p, part) })
	s.mu.Unlock()
	for _, e := range evicted {
		s.limited.Add(1)
		resetConn(e.c)
	}
}

// rest reads the rest of an opening.
func (s *listener) rest(p *openingPlace, part []byte) {
	opening := make([]byte, openingLen)
	n := copy(opening, part)
	_ = p.c.SetReadDeadline(time.Now().Add(openingTime))
	_, err := io.ReadFull(p.c, opening[n:])
	s.mu.Lock()
	stays := s.places.leave(p)
	delete(s.pending, p.c)
	s.mu.Unlock()
	if err != nil || !stays {
		resetConn(p.c)
		return
	}
	s.look(p.c, opening)
}

const (
	acceptPause  = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

// pause waits after an error of accept: most likely no descriptor is left. It returns the next pause.
func (s *listener) pause(err error, pause time.Duration) time.Duration {
	if errors.Is(err, syscall.ECONNABORTED) { // the connection alone is gone
		return acceptPause
	}
	if !host.NobodyWaits(s.l, err) {
		s.refuse(err)
	}
	select {
	case <-s.done:
	case <-time.After(pause):
	}
	return min(2*pause, longestPause)
}

// refuse tells an error of accept, and makes room for the connection that waits.
func (s *listener) refuse(err error) {
	s.mu.Lock()
	s.acceptErr = err
	var shed *openingPlace
	if host.Exhausted(err) {
		shed = s.places.shed()
	}
	s.mu.Unlock()
	if shed != nil {
		s.limited.Add(1)
		resetConn(shed.c)
	}
}

func remoteAddr(c *net.TCPConn) netip.Addr {
	return c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// resetConn closes a connection without a word.
func resetConn(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// admit checks the opening and hands the connection to the waiter that it names.
func (s *listener) admit(c *net.TCPConn, t trust.Ticket, opening []byte) {
	_ = c.SetDeadline(time.Now().Add(openingTime))
	w := s.waiter(t)
	if w == nil {
		resetConn(c)
		return
	}
	secret := w.secret()
	text, err := answerOpening(opening, secret)
	secret.Wipe()
	if err != nil || hungUp(c) || !s.spend(w) { // one that was given up meanwhile spends no ticket: its peer tries again
		resetConn(c)
		return
	}
	_ = c.SetDeadline(time.Now().Add(sendTime)) // anew: this process may have starved since the last one
	if _, err := host.Send(c, text); err != nil {
		resetConn(c)
		w.broken(err) // the ticket is spent: the link needs a fence
		return
	}
	w.attach(newConnection(c, opening, text))
}

// hungUp reports that the other end has closed a connection, or that it has failed. Implements recv with MSG_PEEK.
func hungUp(c *net.TCPConn) (gone bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		var next [1]byte
		n, _, err := unix.Recvfrom(int(fd), next[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = n == 0 && err == nil || err != nil && err != unix.EAGAIN && err != unix.EINTR
	})
	return gone || err != nil
}

func (s *listener) waiter(t trust.Ticket) *waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting[t]
}

// spend uses the waiter's ticket up. It returns false if another connection was faster.
func (s *listener) spend(w *waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[w.ticket] != w {
		return false
	}
	delete(s.waiting, w.ticket)
	return true
}

// Close ends the listener and all connections that have proved nothing. It returns after the last Attach.
func (s *listener) Close() {
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

// listeners has one listener for all shards of a device: a firewall passes one port for each device. The ticket of an opening
// says which shard it is for.
type listeners struct {
	mu     sync.Mutex
	shared map[netip.Addr]*sharedListener
}

type sharedListener struct {
	*listener
	users int
}

// get returns the listener of a device's shard. The caller calls leave when nobody waits for connections any more; the last one
// closes the listener.
func (s *listeners) get(d provider.Device, addr netip.Addr, how sockets, first, last uint16) (l *listener, leave func(), err error) {
	if d.Shards <= 1 {
		l, err = how.Listen(addr, first, last)
		return l, l.Close, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	with := s.shared[addr]
	if with == nil {
		if l, err = how.Listen(addr, first, last); err != nil {
			return nil, nil, err
		}
		if with = (&sharedListener{listener: l}); s.shared == nil {
			s.shared = map[netip.Addr]*sharedListener{}
		}
		s.shared[addr] = with
	}
	with.users++
	return with.listener, func() { s.leave(addr) }, nil
}

func (s *listeners) leave(addr netip.Addr) {
	s.mu.Lock()
	l := s.shared[addr]
	l.users--
	last := l.users == 0
	if last {
		delete(s.shared, addr)
	}
	s.mu.Unlock()
	if last {
		l.Close()
	}
}

// openingPlace holds a connection whose opening is not whole.
type openingPlace struct {
	c      *net.TCPConn
	source netip.Addr // as limiter.SourceOf has it
}

// openingPlaces are those of a listener. The listener's lock guards them.
type openingPlaces struct {
	held    []*openingPlace // oldest first
	sources map[netip.Addr]int
}

// enter takes a place of so many. While all are taken, the oldest connection of the sources that have the most gives its own.
func (p *openingPlaces) enter(n *openingPlace, most int) (evicted []*openingPlace) {
	for len(p.held) >= most {
		evicted = append(evicted, p.shed())
	}
	p.held = append(p.held, n) //limit:tcp_openings
	p.sources[n.source]++
	return evicted
}

// shed takes a place back; nil: none is taken.
func (p *openingPlaces) shed() *openingPlace {
	if len(p.held) == 0 {
		return nil
	}
	most := 0
	for _, count := range p.sources {
		most = max(most, count)
	}
	evicted := p.held[slices.IndexFunc(p.held, func(h *openingPlace) bool { return p.sources[h.source] == most })]
	p.leave(evicted)
	return evicted
}

// leave gives the place back. It returns false if the connection was evicted before.
func (p *openingPlaces) leave(n *openingPlace) bool {
	at := slices.Index(p.held, n)
	if at < 0 {
		return false
	}
	p.held = slices.Delete(p.held, at, at+1)
	if p.sources[n.source]--; p.sources[n.source] == 0 {
		delete(p.sources, n.source)
	}
	return true
}
