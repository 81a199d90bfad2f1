package stream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"gorail/backend/wire"
)

const readBuffer = 4 << 10

// decoded is about how many bytes of memory one byte of a frame takes while the frame is read and decoded.
const decoded = 3

// read reads and handles the frames of one connection. nil when it broke or was replaced; an error ends the stream: it is one of the
// package's, with the peer's name.
func (s *Stream) read(c *Conn) error {
	r := bufio.NewReaderSize(heardReader{s, c}, readBuffer)
	defer s.holdPartial(0)
	for {
		f, err := wire.ReadFrame(r, 0)
		s.holdPartial(0)
		switch {
		case err == nil:
		case s.State().Over(), errors.Is(err, ErrSilent), Malformed(err):
			return s.Explain(err)
		default:
			s.env.Log.Debug("control connection ended", "peer", s.peer, "error", err)
			s.broke(c, err)
			return nil
		}
		s.env.Count.FramesReceived.Add(1)
		if s.State().Over() {
			_, _ = io.Copy(io.Discard, r) // until the other side has read our Bye: unread bytes would turn it into a reset
			return ErrClosed
		}
		if err := s.dispatch(c, f); err != nil {
			return err
		}
	}
}

func (s *Stream) dispatch(c *Conn, f wire.Frame) error {
	switch f := f.(type) {
	case *wire.Ping:
		s.queue.pong(f.Seq)
		return s.acked(c, f.Got)
	case *wire.Pong:
		return s.acked(c, f.Got)
	case *wire.Bye:
		err := fmt.Errorf("%w: %s: %s", ErrPeerClosed, s.peer, f.Text)
		if f.Gone {
			err = Dead(err)
		}
		return err
	}
	if !s.takeIn(c) {
		return nil
	}
	return s.env.Guard(s.peer, f.Type().String(), func() error { return s.handler.Handle(f) })
}

// Unexpected is the error of a frame that this side of a session never gets.
func (s *Stream) Unexpected(f wire.Frame) error {
	return fmt.Errorf("%w: %s sent a frame of type %v", ErrProtocol, s.peer, f.Type())
}

// holdPartial says how many bytes the frame takes that is being read.
func (s *Stream) holdPartial(bytes int64) {
	if !s.Inbound() {
		return
	}
	s.env.Held.Add(bytes - s.partial.Swap(bytes))
	s.env.Shed()
}

// heardReader reads a connection under the stream's liveness. A deadline that turns out not to be the end loses no bytes.
type heardReader struct {
	s *Stream
	c *Conn
}

func (h heardReader) Read(p []byte) (int, error) {
	s := h.s
	for {
		s.mu.Lock()
		ending := !s.closeBy.IsZero()
		if !ending {
			_ = h.c.SetReadDeadline(s.live.Arm(time.Now()))
		}
		s.mu.Unlock()
		n, err := h.c.Read(p)
		if n > 0 {
			h.hear()
			s.holdPartial(s.partial.Load() + decoded*int64(n))
			return n, nil
		}
		if ending || !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
		now := time.Now()
		if err := s.judge(h.c, now); err != nil {
			return 0, err
		}
		if !s.Inbound() && s.live.Uneasy(now) {
			s.mu.Lock()
			if s.path.conn == h.c && !s.state.Over() {
				s.reconnector.Reconnect(false, netip.Addr{})
			}
			s.mu.Unlock()
		}
	}
}

// hear notes a sign of life. What came over a connection that has broken since is none: the peer has yet to come back.
func (h heardReader) hear() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.s.path.conn == h.c {
		h.s.live.Hear(time.Now())
	}
}
