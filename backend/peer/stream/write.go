package stream

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
	conn   *Conn        // nil: there is none now
	frames []wire.Frame // numbered ones, or the Bye
	cost   int          // of frames
	got    uint64       // to be acknowledged along with them
	seq    uint64       // of the Ping to be answered,
	owed   bool         // if there is one
	end    bool         // nothing more will come
}

// gather takes what is to be written on the connection, in the memory of frames.
func (s *Stream) gather(frames []wire.Frame) (b batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn == nil {
		b.end = s.state.Over()
		return b
	}
	b.conn, b.got = s.path.conn, s.resume.got // under one lock: got covers every answer that lets a keys request of this batch go
	b.frames, b.cost, b.end = s.queue.take(frames[:0], writeBatch)
	b.seq, b.owed = s.queue.takePong()
	return b
}

// writer is the state of the goroutine that writes.
type writer struct {
	conn         *Conn
	sent, pinged time.Time // on this connection
	seq          uint64    // of the last ping
	told         uint64    // acknowledged so far
	unasked      int       // bytes since the last ping
	buf          []byte
}

// write sends what is queued and pings, on one connection after another, until the stream ends; then it closes the connection.
func (s *Stream) write() {
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
		if b.conn == nil {
			<-s.queue.wake
			continue
		}
		w.begin(b.conn)
		ping := w.unasked+b.cost >= min(askEvery, s.env.QueueLimit/8)
		if len(w.buf) == 0 && len(b.frames) == 0 && !b.owed && !ping {
			timer.Reset(time.Until(s.live.PingDue(w.sent, w.pinged)))
			select {
			case <-s.queue.wake:
				continue
			case <-timer.C:
			}
			if ping = !time.Now().Before(s.live.PingDue(w.sent, w.pinged)); !ping {
				continue
			}
		}
		n, err := w.encode(b, ping)
		if err != nil {
			err = fmt.Errorf("%w: %s: cannot be sent: %w", ErrProtocol, s.peer, err)
			s.End(Lost, err, s.Bye("internal error"))
			_ = wire.WriteFrame(b.conn, &wire.Bye{Text: Clip(err.Error())})
			return
		}
		if _, err := b.conn.Write(w.buf); err != nil {
			s.readerFirst(b.conn)
			if s.State().Over() {
				return
			}
			s.broke(b.conn, err)
			continue
		}
		w.sent = time.Now()
		s.env.Count.FramesSent.Add(uint64(n))
		s.env.Count.BytesSent.Add(uint64(len(w.buf)))
		w.buf = w.buf[:0]
		if cap(w.buf) > 4*writeBatch {
			w.buf = nil // a large frame passed; idle sessions keep little
		}
		clear(b.frames)
		frames = b.frames
	}
}

// begin makes a connection the one that is written to.
func (w *writer) begin(c *Conn) {
	if w.conn != c {
		now := time.Now()
		w.conn, w.sent, w.pinged, w.unasked = c, now, now, 0
		w.buf = append(w.buf[:0], c.first...)
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

// readerFirst gives the reader a moment after a failed write: what it finds, a Bye for one, says better why.
func (s *Stream) readerFirst(c *Conn) {
	timer := time.NewTimer(Linger)
	defer timer.Stop()
	select {
	case <-c.down:
	case <-s.readDone:
	case <-timer.C:
	}
}

// hangUp closes the connection. After a Bye it closes one half first, until the peer has done the same or Linger is over.
func (s *Stream) hangUp() {
	s.mu.Lock()
	c, until := s.path.conn, s.closeBy
	s.mu.Unlock()
	s.queue.drop()
	if c == nil {
		return
	}
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && !until.IsZero() && half.CloseWrite() == nil {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		select {
		case <-s.readDone:
		case <-timer.C:
		}
	}
	c.Close()
}
