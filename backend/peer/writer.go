package peer

import (
	"fmt"
	"time"

	"gorail/backend/wire"
)

const (
	writeBatch = 64 << 10  // about how many bytes go into one write
	askEvery   = 256 << 10 // after so much an acknowledgement is asked for, so that little is kept; or after an eighth of the limit
)

// batch is what goes into one write.
type batch struct {
	line   *line        // nil: there is none now
	frames []wire.Frame // numbered ones, or the Bye
	cost   int          // of frames
	got    uint64       // to be acknowledged along with them
	seq    uint64       // of the Ping to be answered,
	owed   bool         // if there is one
	end    bool         // nothing more will come
}

// gather takes what is to be written on the line, in the memory of frames.
func (s *session) gather(frames []wire.Frame) (b batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line == nil {
		b.end = s.state.over()
		return b
	}
	b.line, b.got = s.line, s.got // under one lock: got covers every answer that lets a keys request of this batch go
	b.frames, b.cost, b.end = s.queue.take(frames[:0], writeBatch)
	b.seq, b.owed = s.queue.takePong()
	return b
}

// writer is the state of the goroutine that writes.
type writer struct {
	line         *line
	sent, pinged time.Time // on this line
	seq          uint64    // of the last ping
	told         uint64    // acknowledged so far
	unasked      int       // bytes since the last ping
	buf          []byte
}

// write sends what is queued and pings, on one line after another, until the session ends; then it closes the connection.
func (s *session) write() {
	defer s.hangUp()
	timer := time.NewTimer(time.Hour) // reset before each use
	defer timer.Stop()
	var w writer
	var frames []wire.Frame
	for {
		b := s.gather(frames)
		if b.end {
			return
		}
		if b.line == nil {
			<-s.queue.wake
			continue
		}
		w.begin(b.line)
		ping := w.unasked+b.cost >= min(askEvery, s.node.cfg.QueueLimit/8)
		if len(w.buf) == 0 && len(b.frames) == 0 && !b.owed && !ping {
			timer.Reset(time.Until(s.pingDue(&w)))
			select {
			case <-s.queue.wake:
				continue
			case <-timer.C:
			}
			if ping = !time.Now().Before(s.pingDue(&w)); !ping {
				continue
			}
		}
		n, err := w.encode(b, ping)
		if err != nil {
			err = fmt.Errorf("%w: %s: cannot be sent: %w", ErrProtocol, s.peer, err)
			s.end(Lost, err, s.bye("internal error"))
			_ = wire.WriteFrame(b.line.conn, &wire.Bye{Text: clip(err.Error())})
			return
		}
		if _, err := b.line.conn.Write(w.buf); err != nil {
			s.readerFirst(b.line)
			if s.State().over() {
				return
			}
			s.broke(b.line, err)
			continue
		}
		w.sent = time.Now()
		s.node.count.framesSent.Add(uint64(n))
		s.node.count.bytesSent.Add(uint64(len(w.buf)))
		w.buf = w.buf[:0]
		if cap(w.buf) > 4*writeBatch {
			w.buf = nil // a large frame passed; idle sessions keep little
		}
		clear(b.frames)
		frames = b.frames
	}
}

// begin makes a line the one that is written to.
func (w *writer) begin(l *line) {
	if w.line != l {
		now := time.Now()
		w.line, w.sent, w.pinged, w.unasked = l, now, now, 0
		w.buf = append(w.buf[:0], l.first...)
	}
}

// encode appends a batch to the buffer, and says how many frames that makes. The acknowledgement comes first.
func (w *writer) encode(b batch, ping bool) (n int, err error) {
	put := func(f wire.Frame) {
		if err == nil {
			w.buf, err = wire.AppendFrame(w.buf, f)
			n++
		}
	}
	if b.owed || len(b.frames) > 0 && b.got != w.told {
		pong := &wire.Pong{Got: b.got}
		if b.owed {
			pong.Seq = b.seq
		}
		put(pong)
		w.told = b.got
	}
	for _, f := range b.frames {
		put(f)
	}
	w.unasked += b.cost
	if ping {
		w.seq++
		w.pinged, w.unasked, w.told = time.Now(), 0, b.got
		put(&wire.Ping{Seq: w.seq, Got: b.got})
	}
	return n, err
}

// pingDue is when the next ping is due: nothing sent for a quarter of PeerTimeout, or nothing heard and no ping sent.
func (s *session) pingDue(w *writer) time.Time {
	return earlier(w.sent, later(w.pinged, s.live.lastHeard())).Add(s.node.cfg.heartbeat() / 4)
}

// readerFirst gives the reader a moment after a failed write: what it finds, a Bye for one, says better why.
func (s *session) readerFirst(l *line) {
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-l.down:
	case <-s.readDone:
	case <-timer.C:
	}
}

// hangUp closes the connection. After a Bye it closes one half first, until the peer has done the same or linger is over.
func (s *session) hangUp() {
	s.mu.Lock()
	l, until := s.line, s.closeBy
	s.mu.Unlock()
	s.queue.drop()
	if l == nil {
		return
	}
	if half, ok := l.conn.(interface{ CloseWrite() error }); ok && !until.IsZero() && half.CloseWrite() == nil {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		select {
		case <-s.readDone:
		case <-timer.C:
		}
	}
	l.conn.Close()
}
