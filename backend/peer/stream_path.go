package peer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/time/rate"
)

// hungUpGrace is the time that a target keeps the session of an initiator that hung up without a Bye. Usually the
// initiator's process has died, and waiting users should get their error within two seconds, including the 0.5 s for
// closing a thousand endpoints. A live initiator notices the loss at once and resumes at once.
const hungUpGrace = 1200 * time.Millisecond

// install sets the stream's connection. It needs mu, and a stream without connection.
func (s *stream) install(c *streamConn) {
	_ = c.SetDeadline(time.Time{})
	s.closeParked()
	s.path = path{conn: c, at: c.addr, since: s.path.since}
	s.live.Hear(time.Now())
	s.live.Work(time.Now())
	s.writing.wake()
	s.change()
}

// disconnect takes the connection from the stream. It needs mu.
func (s *stream) disconnect(why error) { s.detach(why).Close() }

// detach is disconnect, and leaves the connection open. It needs mu.
func (s *stream) detach(why error) *streamConn {
	c := s.path.conn
	s.path.conn, s.path.broken, s.path.since = nil, why, time.Now()
	s.live.Apart()
	close(c.down)
	s.queue.disconnected() // wakes a reader that waits for room
	return c
}

// mostParked bounds the connections that an initiator has given up and keeps open.
const mostParked = 8

// park keeps a connection open that an initiator has given up, until there is another one: the target would take its end for the end of our process, and end the
// session after hungUpGrace. An initiator that starves for processor time takes longer for another connection. It needs mu.
func (s *stream) park(c net.Conn) {
	_ = c.SetDeadline(time.Unix(1, 0)) // nobody reads or writes it any more
	if s.path.parked = append(s.path.parked, c); len(s.path.parked) > mostParked {
		s.path.parked[0].Close()
		s.path.parked = s.path.parked[1:]
	}
	if s.state.Over() || s.path.conn != nil {
		s.closeParked()
	}
}

// closeParked needs mu.
func (s *stream) closeParked() {
	for _, c := range s.path.parked {
		c.Close()
	}
	s.path.parked = nil
}

// connLost takes a failed connection from the stream, which then waits for another. An initiator starts to look for
// one. connLost does nothing if the stream has another connection already, or has ended.
func (s *stream) connLost(c *streamConn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn != c || s.state.Over() {
		return
	}
	switch c := s.detach(err); {
	case !s.Inbound() && !dropped(err): // a Write that had no time to go on, for example: the target is not to believe that we have ended
		s.park(c)
	default:
		c.Close()
	}
	switch {
	case !s.Inbound():
		s.reconnect(false, netip.Addr{})
	case dropped(err):
		s.live.HungUp(time.Now(), min(s.env.PeerTimeout, hungUpGrace))
	}
}

// awaitConn waits for the stream's connection and returns it. An error ends the stream.
func (s *stream) awaitConn() (*streamConn, error) {
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
			if err := s.checkPeer(nil, time.Now()); err != nil && !errors.Is(err, errReplaced) {
				return nil, err
			}
		}
	}
}

// checkPeer ends the stream if its peer is lost: nothing came over c until the deadline. c is nil if there is no
// connection. After an error, c must not be read any more.
func (s *stream) checkPeer(c *streamConn, now time.Time) error {
	if !s.live.Expired(now) {
		return nil
	}
	if s.alive(c) {
		s.live.Extend(now)
		return nil
	}
	return s.endLost(c, now)
}

// endLost ends the stream of a peer without signs of life, unless the stream has been resumed meanwhile. One lock
// covers both checks.
func (s *stream) endLost(c *streamConn, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.path.conn != c:
		return errReplaced
	case s.state.Over():
		return ErrClosed
	case !s.live.Expired(now): // another connection was in use, and broke too
		return nil
	case c == nil:
		err := s.noPathError(s.path.broken)
		s.end(Lost, err, nil)
		return err
	}
	err := s.Explain(ErrSilent)
	s.end(Lost, err, s.Bye(err.Error()))
	return err
}

// noPathError is the error of a stream that got no other connection in time.
func (s *stream) noPathError(broken error) error {
	if errors.Is(broken, errSuspected) {
		return s.Explain(ErrSilent)
	}
	if s.Inbound() && dropped(broken) {
		return fmt.Errorf("%w: the peer's process ended", s.Explain(broken))
	}
	return fmt.Errorf("%w: no other path to the peer within %v (option peer_timeout)", s.Explain(broken), s.env.PeerTimeout)
}

// alive reports whether a silent peer shows other signs of life: its process runs on this host, its host acknowledges
// our segments, or its host has recently accepted a connection. A stopped process, or one without CPU time, sends
// nothing, but its kernel still answers. c is nil while the stream has no connection.
func (s *stream) alive(c *streamConn) bool {
	s.mu.Lock()
	running, reached, since := s.signs.running, s.signs.reached, s.path.since
	s.mu.Unlock()
	timeout := s.env.PeerTimeout
	switch {
	case c == nil && running && time.Since(since) < timeout:
		return true // no longer: the engine may have ended without a Bye
	case c == nil && s.Inbound() && s.env.Opening != nil && s.env.Opening() && time.Since(since) < timeout:
		return true // its Resume may be among them: after a cut many sessions resume at once
	case c == nil:
		return !reached.IsZero() && time.Since(reached) < timeout
	case running:
		return true
	}
	return s.env.Acks(c.Conn, timeout)
}

// starvers bounds how often this process looks for other paths to peers whose kernels acknowledge what their processes do not answer: these starve for processor
// time, or are stopped, and each look takes more of it. Of 64 agents that all met on two cores, 79 sessions a second began to look, and 180 connections a second
// were made and given up. A path that lets small packets through alone is found at this pace, too, and within half
// of peer_timeout whatever others take (livenessMonitor.SeekAnyway).
var starvers = rate.NewLimiter(1, 8)

// reachesHost reports that the kernel at the other end of a connection acknowledges our bytes, the ping of a silent peer among them, or has acknowledged all: a ping
// may be late because this process starves.
func (s *stream) reachesHost(c *streamConn) bool {
	return s.env.Acks(c.Conn, s.live.beat/3) || s.env.Acks(c.Conn, never) && allAcknowledged(c.Conn)
}

// starves reports that the peer is reached, and does not answer. It needs the stream's lock.
func (l lockedStream) starves() bool { return l.Connected() && l.s.reachesHost(l.s.path.conn) }

// Suspect reports a failing rail, by its local address. If the connection leaves from that address, the initiator
// looks for another one, and keeps this one until another path answers. The zero address matches any connection. At a
// target, Suspect does nothing; GiveUp is for targets.
func (s *stream) Suspect(local netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.path.conn; !s.Inbound() && s.state == Ready && c != nil && c.leavesFrom(local) {
		s.reconnect(true, localAddr(c.Conn))
	}
}

// GiveUp closes the connection if it leaves from a local address. The zero address matches any connection.
func (s *stream) GiveUp(local netip.Addr, why string) {
	s.mu.Lock()
	c, ready := s.path.conn, s.state == Ready
	s.mu.Unlock()
	if ready && c != nil && c.leavesFrom(local) {
		s.connLost(c, fmt.Errorf("closed by this side: %s", why))
	}
}

// countReceived counts a frame that is about to be handled. It returns false if c is not the stream's connection any
// more; the frame then comes again over the next connection.
func (s *stream) countReceived(c *streamConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn != c {
		return false
	}
	s.resume.got++
	return true
}

// acked handles an acknowledgement of the other side.
func (s *stream) acked(c *streamConn, got uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn == c && !s.queue.ack(got) {
		return fmt.Errorf("%w: %s acknowledged %d frames, more than were sent", ErrProtocol, s.peer, got)
	}
	return nil
}
