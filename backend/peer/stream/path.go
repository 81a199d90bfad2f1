package stream

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// hungUpGrace is how long a target keeps the session of an initiator that hung up without a Bye. Most often its process has
// died, and what waits for it should not wait long: two seconds with the time that closing a thousand endpoints takes (0.5 s). If not, it
// knows at once and resumes at once.
const hungUpGrace = 1200 * time.Millisecond

// install makes a connection the stream's. With mu held, while there is none.
func (s *Stream) install(c *Conn) {
	_ = c.SetDeadline(time.Time{})
	s.path = path{conn: c, at: c.addr, since: s.path.since}
	s.live.Hear(time.Now())
	s.queue.signal()
	s.change()
}

// unplug takes the connection from the stream. With mu held.
func (s *Stream) unplug(why error) {
	c := s.path.conn
	s.path.conn, s.path.broken, s.path.since = nil, why, time.Now()
	close(c.down)
	c.Close()
	s.queue.unplug() // a reader that waits for room is to notice
}

// broke takes a connection that failed from the stream, which waits for another: the initiator looks for one. Nothing
// happens when the stream has another connection already, or is over.
func (s *Stream) broke(c *Conn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn != c || s.state.Over() {
		return
	}
	s.unplug(err)
	switch {
	case !s.Inbound():
		s.reconnector.Reconnect(false, netip.Addr{})
	case dropped(err):
		s.live.Hurry(time.Now(), min(s.env.PeerTimeout, hungUpGrace))
	}
}

// await gives the stream's connection, as soon as it has one. An error ends the stream.
func (s *Stream) await() (*Conn, error) {
	timer := time.NewTimer(time.Hour) // reset before each use
	defer timer.Stop()
	for {
		s.mu.Lock()
		c, over := s.path.conn, s.state.Over()
		s.mu.Unlock()
		switch {
		case c != nil:
			return c, nil
		case over:
			return nil, ErrClosed
		}
		timer.Reset(time.Until(s.live.Arm(time.Now())))
		select {
		case <-s.changed:
		case <-timer.C:
			if err := s.judge(nil, time.Now()); err != nil && !errors.Is(err, errReplaced) {
				return nil, err
			}
		}
	}
}

// judge ends the stream if its peer is lost, now that nothing came over c until the deadline; nil: there is no connection. An error says
// that c is not to be read any more.
func (s *Stream) judge(c *Conn, now time.Time) error {
	if !s.live.Expired(now) {
		return nil
	}
	if s.alive(c) {
		s.live.Spare(now)
		return nil
	}
	return s.condemn(c, now)
}

// condemn ends the stream of a peer without signs of life, unless it has resumed meanwhile: both are decided under the lock.
func (s *Stream) condemn(c *Conn, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.path.conn != c:
		return errReplaced
	case s.state.Over():
		return ErrClosed
	case !s.live.Expired(now): // there was another connection, which broke too
		return nil
	case c == nil:
		err := s.stranded(s.path.broken)
		s.end(Lost, err, nil)
		return err
	}
	err := s.Explain(ErrSilent)
	s.end(Lost, err, s.Bye(err.Error()))
	return err
}

// stranded is the error of a stream that has waited in vain for another connection.
func (s *Stream) stranded(broken error) error {
	if errors.Is(broken, errUneasy) {
		return s.Explain(ErrSilent)
	}
	if s.Inbound() && dropped(broken) {
		return fmt.Errorf("%w: its process ended", s.Explain(broken))
	}
	return fmt.Errorf("%w: no other path within %v (option peer_timeout)", s.Explain(broken), s.env.PeerTimeout)
}

// alive says whether a silent peer shows signs of life: its process runs on this host, its host acknowledges what we send, or
// its host has accepted a connection lately. A process that is stopped or starved of CPU says nothing, and its kernel answers for
// it. c is nil while the stream has no connection.
func (s *Stream) alive(c *Conn) bool {
	s.mu.Lock()
	running, reached, since := s.signs.running, s.signs.reached, s.path.since
	s.mu.Unlock()
	timeout := s.env.PeerTimeout
	switch {
	case c == nil && running && time.Since(since) < timeout:
		return true // not for longer: its engine may have ended without a word
	case c == nil:
		return !reached.IsZero() && time.Since(reached) < timeout
	case running:
		return true
	}
	return s.env.Acks(c.Conn, timeout)
}

// Suspect says that the rail with a local address is in trouble: if the connection leaves from it, another is sought, and this
// one kept until one answers. The zero address means any connection. An initiator's alone seeks: a target has GiveUp.
func (s *Stream) Suspect(local netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.path.conn; !s.Inbound() && s.state == Ready && c != nil && c.over(local) {
		s.reconnector.Reconnect(true, LocalAddr(c.Conn))
	}
}

// GiveUp closes the connection if it leaves from a local address; the zero address means any.
func (s *Stream) GiveUp(local netip.Addr, why string) {
	s.mu.Lock()
	c, ready := s.path.conn, s.state == Ready
	s.mu.Unlock()
	if ready && c != nil && c.over(local) {
		s.broke(c, fmt.Errorf("given up: %s", why))
	}
}

// takeIn counts a frame that is about to be handled; false when the connection is not the stream's any more: the frame comes
// again over the next.
func (s *Stream) takeIn(c *Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn != c {
		return false
	}
	s.resume.got++
	return true
}

// acked takes in what the other side has got.
func (s *Stream) acked(c *Conn, got uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn == c && !s.queue.ack(got) {
		return fmt.Errorf("%w: %s acknowledged %d frames, more than there were", ErrProtocol, s.peer, got)
	}
	return nil
}
