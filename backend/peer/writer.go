package peer

import (
	"fmt"
	"time"

	"gorail/backend/wire"
)

// writeBatch is about how many bytes go into one write.
const writeBatch = 64 << 10

// write sends what is queued and pings, until the session ends; then it closes the connection.
func (s *session) write() {
	defer s.hangUp()
	now := time.Now()
	sent, pinged, seq := now, now, uint64(0)
	timer := time.NewTimer(time.Hour) // reset before each use
	defer timer.Stop()
	var buf []byte
	for {
		frames, cost, end := s.queue.take(writeBatch)
		if end {
			return
		}
		if len(frames) == 0 {
			timer.Reset(time.Until(s.pingDue(sent, pinged)))
			select {
			case <-s.queue.wake:
				continue
			case <-timer.C:
			}
			now := time.Now()
			if now.Before(s.pingDue(sent, pinged)) {
				continue
			}
			seq++
			pinged = now
			frames = []wire.Frame{&wire.Ping{Seq: seq}}
		}
		buf = buf[:0]
		for _, f := range frames {
			var err error
			if buf, err = wire.AppendFrame(buf, f); err != nil {
				s.end(Lost, fmt.Errorf("%w: %s: cannot be sent: %w", ErrProtocol, s.peer, err), "internal error")
				return
			}
		}
		if _, err := s.conn.Write(buf); err != nil {
			if !s.State().over() {
				s.readerFirst()
			}
			s.end(Lost, s.explain(err), "")
			return
		}
		sent = time.Now()
		s.node.count.framesSent.Add(uint64(len(frames)))
		s.node.count.bytesSent.Add(uint64(len(buf)))
		s.queue.release(cost)
		if cap(buf) > 4*writeBatch {
			buf = nil // a large frame passed; idle sessions keep little
		}
	}
}

// pingDue is when the next ping is due: nothing sent for a quarter of PeerTimeout, or nothing heard and no ping sent.
func (s *session) pingDue(sent, pinged time.Time) time.Time {
	return earlier(sent, later(pinged, s.live.lastHeard())).Add(s.node.cfg.PeerTimeout / 4)
}

// readerFirst gives the reader a moment after a failed write: what it finds, a Bye for one, says better why.
func (s *session) readerFirst() {
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-s.readDone:
	case <-timer.C:
	}
}

// hangUp closes the connection. After a Bye it closes one half first, until the peer has done the same or linger is over.
func (s *session) hangUp() {
	s.mu.Lock()
	conn, until := s.conn, s.closeBy
	s.mu.Unlock()
	s.queue.drop()
	if half, ok := conn.(interface{ CloseWrite() error }); ok && !until.IsZero() && half.CloseWrite() == nil {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		select {
		case <-s.readDone:
		case <-timer.C:
		}
	}
	conn.Close()
}
