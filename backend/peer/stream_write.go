package peer

import (
	"fmt"
	"time"

	"gorail/backend/wire"
)

const (
	writeBatch = 64 << 10  // about the bytes of one write
	ackEvery   = 256 << 10 // bytes after which a Ping asks for an acknowledgement, or an eighth of the limit if that is less: unacknowledged frames take memory
)

// batch is the content of one write.
type batch struct {
	conn    *streamConn  // nil: there is no connection now
	frames  []wire.Frame // numbered frames, or the Bye
	cost    int          // of frames
	got     uint64       // count to acknowledge with them
	seq     uint64       // number of the Ping to answer,
	pongDue bool         // if there is one
	end     bool         // nothing more will come
}

// gather collects the frames to write, and reuses the memory of frames.
func (s *stream) gather(frames []wire.Frame) (b batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn == nil {
		b.end = s.state.Over()
		return b
	}
	b.conn, b.got = s.path.conn, s.resume.got // under one lock: got covers every answer that allowed a keys request of this batch
	b.frames, b.cost, b.end = s.queue.take(frames[:0], writeBatch)
	b.seq, b.pongDue = s.queue.takePong()
	return b
}

// writer is what has been written. The goroutine that writes has it.
type writer struct {
	conn         *streamConn
	sent, pinged time.Time // on this connection
	seq          uint64    // of the last ping
	acked        uint64    // last count acknowledged
	sincePing    int       // bytes since the last ping
	buf          []byte
	moves        func() wire.Moves // constant; nil: this side moves nothing
}

// write sends queued frames, and a heartbeat (Ping) when one is due, over one connection after another. It returns when there is nothing to
// write, and is started again then. At the end of the stream it closes the connection.
func (s *stream) write() {
	if s.writeAll() {
		s.hangUp()
		s.writing.end()
	}
}

// writeAll returns true at the end of the stream.
func (s *stream) writeAll() (over bool) {
	w := &s.w
	var frames []wire.Frame
	for {
		b := s.gather(frames)
		if b.end {
			return true
		}
		if b.conn == nil {
			if s.writing.rest(0) {
				return false
			}
			continue
		}
		w.begin(b.conn)
		ping := s.writing.pings() || w.sincePing+b.cost >= min(ackEvery, s.env.QueueLimit/8)
		if len(w.buf) == 0 && len(b.frames) == 0 && !b.pongDue && !ping {
			now := time.Now()
			due := s.live.PingDue(now, w.sent, w.pinged)
			if ping = !now.Before(due); !ping {
				w.buf = nil // idle sessions keep little memory
				if s.writing.rest(due.Sub(now)) {
					return false
				}
				continue
			}
		}
		s.outstanding(len(b.frames) > 0, ping)
		n, err := w.encode(b, ping)
		if err != nil {
			err = fmt.Errorf("%w: %s: cannot encode a frame: %w", ErrProtocol, s.peer, err)
			s.End(Lost, err, s.Bye("internal error"))
			_ = wire.WriteFrame(b.conn, &wire.Bye{Text: clipText(err.Error())})
			return true
		}
		if _, err := b.conn.Write(w.buf); err != nil {
			s.readerFirst(b.conn)
			if s.State().Over() {
				return true
			}
			s.connLost(b.conn, err)
			continue
		}
		w.sent = time.Now()
		s.outstanding(len(b.frames) > 0, false) // Write may have taken long
		s.env.Count.FramesSent.Add(uint64(n))
		s.env.Count.BytesSent.Add(uint64(len(w.buf)))
		w.buf = w.buf[:0]
		if cap(w.buf) > 4*writeBatch {
			w.buf = nil // after a large frame
		}
		clear(b.frames)
		frames = b.frames
	}
}

// outstanding records that frames or a ping are about to be sent, or were sent.
func (s *stream) outstanding(frames, ping bool) {
	now := time.Now()
	roused := frames && s.live.Work(now)
	if ping && s.live.Pinged(now) || roused {
		s.rearm()
	}
}

// Busy records that a transfer with the peer runs: if the peer does not answer, that must be known soon.
func (s *stream) Busy() {
	if s.State() == Ready && s.live.Work(time.Now()) {
		s.rearm()
		s.writing.wake()
	}
}

// PingIfDue pings a peer that was not heard lately because nothing was outstanding: does it live?
func (s *stream) PingIfDue() {
	if s.State() == Ready && s.live.TakePing(time.Now()) {
		s.rearm()
		s.writing.wake()
	}
}

// rearm gives the read in progress the deadline of a peer that is not quiet any more.
func (s *stream) rearm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn != nil && s.closeBy.IsZero() {
		_ = s.path.conn.SetReadDeadline(s.live.Arm(time.Now()))
	}
}

// begin switches the writer to a connection, if it is new.
func (w *writer) begin(c *streamConn) {
	if w.conn != c {
		now := time.Now()
		w.conn, w.sent, w.pinged, w.sincePing = c, now, now, 0
		w.buf = append(w.buf[:0], c.first...)
	}
}

func (w *writer) moved() (m wire.Moves) {
	if w.moves != nil {
		m = w.moves()
	}
	return m
}

// encode appends a batch to the buffer, and returns the number of frames. The acknowledgement comes first.
func (w *writer) encode(b batch, ping bool) (n int, err error) {
	put := func(f wire.Frame) {
		if err == nil {
			w.buf, err = wire.AppendFrame(w.buf, f)
			n++
		}
	}
	if b.pongDue || len(b.frames) > 0 && b.got != w.acked {
		pong := &wire.Pong{Got: b.got, Moves: w.moved()}
		if b.pongDue {
			pong.Seq = b.seq
		}
		put(pong)
		w.acked = b.got
	}
	for _, f := range b.frames {
		put(f)
	}
	w.sincePing += b.cost
	if ping {
		w.seq++
		w.pinged, w.sincePing, w.acked = time.Now(), 0, b.got
		put(&wire.Ping{Seq: w.seq, Got: b.got, Moves: w.moved()})
	}
	return n, err
}

// readerFirst waits briefly for the reader after a failed write. What the reader finds, for example a Bye, explains
// the failure better.
func (s *stream) readerFirst(c *streamConn) {
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-c.down:
	case <-s.readDone:
	case <-timer.C:
	}
}

// hangUp closes the connection. After a Bye it first closes the write half, and waits until the peer has closed too
// or Linger is over.
func (s *stream) hangUp() {
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
