package peer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// hungUpGrace is how long a target keeps the session of an initiator that hung up without a Bye. Most often its process has
// died, and what waits for it should not wait long: two seconds with the time that closing a thousand endpoints takes (0.5 s). If not, it
// knows at once and resumes at once.
const hungUpGrace = 1200 * time.Millisecond

// Why a line was taken from a session that lives on.
var (
	errReplaced = errors.New("replaced by another connection")
	errUneasy   = errors.New("silent, and another path answers")
)

// line is one connection of a session. The session survives it.
type line struct {
	conn  net.Conn
	addr  netip.AddrPort // where the initiator dialed; not set at the target
	first []byte         // is written before all else
	down  chan struct{}  // closed when the session has given the line up
}

func newLine(c net.Conn, addr netip.AddrPort) *line {
	return &line{conn: c, addr: addr, down: make(chan struct{})}
}

// over says that the line leaves from a local address; the zero one means any.
func (l *line) over(local netip.Addr) bool {
	return !local.IsValid() || localAddr(l.conn) == bare(local)
}

// localAddr is the address that a connection leaves from.
func localAddr(c net.Conn) netip.Addr {
	if t, ok := c.LocalAddr().(*net.TCPAddr); ok {
		return bare(t.AddrPort().Addr())
	}
	return netip.Addr{}
}

func bare(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// install makes a line the session's. With mu held, while there is none.
func (s *session) install(l *line) {
	_ = l.conn.SetDeadline(time.Time{})
	s.line, s.at, s.broken = l, l.addr, nil
	s.live.hear(time.Now())
	s.queue.signal()
	s.change()
}

// change wakes await.
func (s *session) change() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// unplug takes the line from the session. With mu held.
func (s *session) unplug(why error) {
	l := s.line
	s.line, s.broken, s.unpluggedAt = nil, why, time.Now()
	close(l.down)
	l.conn.Close()
}

// broke takes a line that failed from the session, which waits for another: the initiator looks for one. Nothing
// happens when the session has another line already, or is over.
func (s *session) broke(l *line, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != l || s.state.over() {
		return
	}
	s.unplug(err)
	switch {
	case s.seek != nil:
		s.seek(false, netip.Addr{})
	case dropped(err):
		s.live.hurry(time.Now().Add(min(s.node.cfg.PeerTimeout, hungUpGrace)))
	}
}

// dropped says that the other side's host closed the connection, so the path to it works.
func dropped(err error) bool { return hungUp(err) || errors.Is(err, io.ErrUnexpectedEOF) }

// await gives the session's line, as soon as it has one. An error ends the session.
func (s *session) await() (*line, error) {
	timer := time.NewTimer(time.Hour) // reset before each use
	defer timer.Stop()
	for {
		s.mu.Lock()
		l, over, broken := s.line, s.state.over(), s.broken
		s.mu.Unlock()
		switch {
		case l != nil:
			return l, nil
		case over:
			return nil, ErrClosed
		}
		timer.Reset(time.Until(s.live.arm(time.Now())))
		select {
		case <-s.changed:
		case <-timer.C:
			if now := time.Now(); s.live.expired(now) {
				if !s.alive(nil) {
					return nil, s.stranded(broken)
				}
				s.live.spare(now)
			}
		}
	}
}

// stranded is the error of a session that has waited in vain for another line.
func (s *session) stranded(broken error) error {
	if errors.Is(broken, errUneasy) {
		return s.explain(ErrSilent)
	}
	if s.inbound && dropped(broken) {
		return fmt.Errorf("%w: its process ended", s.explain(broken))
	}
	return fmt.Errorf("%w: no other path within %v (option peer_timeout)", s.explain(broken), s.node.cfg.PeerTimeout)
}

// takeIn counts a frame that is about to be handled; false when the line is not the session's any more: the frame comes
// again over the next.
func (s *session) takeIn(l *line) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != l {
		return false
	}
	s.got++
	return true
}

// acked takes in what the other side has got.
func (s *session) acked(l *line, got uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line == l && !s.queue.ack(got) {
		return fmt.Errorf("%w: %s acknowledged %d frames, more than there were", ErrProtocol, s.peer, got)
	}
	return nil
}
