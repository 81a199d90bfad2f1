package peer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"

	"gorail/backend/wire"
)

const readBuffer = 256 // frames of an idle session are small, and TLS has a buffer of its own

// decoded is about the memory, in bytes, that one byte of a frame takes while the frame is read and decoded.
const decoded = 3

// read reads and handles the frames of one connection. It returns nil if the connection broke or was replaced. An
// error ends the stream; it is one of the package's errors, with the peer's name.
func (s *stream) read(c *streamConn) error {
	h := &monitoredReader{s: s, c: c, raw: rawConn(c.Conn)}
	r := bufio.NewReaderSize(h, readBuffer)
	defer s.holdPartial(0)
	for {
		if more, err := s.frame(c, r, h.await(r)); !more {
			return err
		}
	}
}

// frame reads and handles the frame that await has waited for. While read waits, its stack is small: Go leaves an idle session 4 KiB of it, and
// 8 KiB with what frame needs.
//
//go:noinline
func (s *stream) frame(c *streamConn, r *bufio.Reader, err error) (more bool, _ error) {
	var f wire.Frame
	if err == nil {
		f, err = wire.ReadFrame(r, 0)
	}
	s.holdPartial(0)
	switch {
	case err == nil:
	case s.State().Over(), errors.Is(err, ErrSilent), malformed(err):
		return false, s.Explain(err)
	default:
		s.env.Log.Debug("control connection ended", "peer", s.peer, "error", err)
		s.connLost(c, err)
		return false, nil
	}
	s.env.Count.FramesReceived.Add(1)
	s.env.Heard()
	if s.State().Over() {
		_, _ = io.Copy(io.Discard, r) // until the other side has read our Bye; unread bytes would cause a TCP reset
		return false, ErrClosed
	}
	err = s.dispatch(c, f)
	return err == nil, err
}

func (s *stream) dispatch(c *streamConn, f wire.Frame) error {
	switch f := f.(type) {
	case *wire.Ping:
		s.queue.pong(f.Seq)
		s.r.told.take(time.Now(), f.Moves)
		return s.acked(c, f.Got)
	case *wire.Pong:
		s.r.told.take(time.Now(), f.Moves)
		return s.acked(c, f.Got)
	case *wire.Bye:
		err := fmt.Errorf("%w: %s: %s", ErrPeerClosed, s.peer, f.Text)
		if f.Gone {
			err = dead(err)
		}
		return err
	}
	if !s.countReceived(c) {
		return nil
	}
	return s.env.Guard(s.peer, f.Type().String(), func() error { return s.handle(f) })
}

// Unexpected returns the error of a frame that this side of a session must not receive.
func (s *stream) Unexpected(f wire.Frame) error {
	return fmt.Errorf("%w: %s sent a frame of type %v", ErrProtocol, s.peer, f.Type())
}

// holdPartial sets the bytes that the frame being read takes, for inbound streams.
func (s *stream) holdPartial(bytes int64) {
	if !s.Inbound() {
		return
	}
	s.env.Held.Add(bytes - s.r.partial.Swap(bytes))
	s.env.Shed()
}

// monitoredReader reads a connection and reports to the stream's monitor. A deadline that does not end the stream
// loses no bytes.
type monitoredReader struct {
	s   *stream
	c   *streamConn
	raw syscall.RawConn // of the socket; nil: there is none
	try bool            // Read returns what has come, and else errNothing
}

var errNothing = errors.New("nothing has come")

// await waits for the next frame to begin. A goroutine that waits within TLS keeps 16 KiB of stack; this one 4.
func (h *monitoredReader) await(r *bufio.Reader) error {
	if h.raw == nil {
		return nil
	}
	h.try = true
	_, err := r.Peek(1) // TLS may have it already
	h.try = false
	for err == errNothing {
		if !h.arm() {
			return nil
		}
		err = h.raw.Read(readable)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if err = h.late(); err == nil {
				err = errNothing
			}
		}
	}
	return err
}

// arm sets the deadline of the next read. False: the stream ends, which has set one.
func (h *monitoredReader) arm() bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if !h.s.closeBy.IsZero() {
		return false
	}
	if h.s.path.conn == h.c { // else it is parked
		_ = h.c.SetReadDeadline(h.s.live.Arm(time.Now()))
	}
	return true
}

// late handles the end of a read by its deadline. An error ends the stream, or the use of the connection.
func (h *monitoredReader) late() error {
	s, now := h.s, time.Now()
	s.mu.Lock()
	replaced := s.path.conn != h.c
	s.mu.Unlock()
	if replaced {
		return errReplaced
	}
	if err := s.checkPeer(h.c, now); err != nil {
		return err
	}
	if !s.Inbound() && s.live.ShouldReconnect(now) && (!s.reachesHost(h.c) || s.live.LongSilence(now) && (starvers.Allow() || s.live.SeekAnyway(now))) {
		s.mu.Lock()
		if s.path.conn == h.c && !s.state.Over() {
			s.reconnect(false, netip.Addr{})
		}
		s.mu.Unlock()
	}
	return nil
}

// Read implements io.Reader.
func (h *monitoredReader) Read(p []byte) (int, error) {
	s := h.s
	for {
		ending := false
		if h.try {
			if !h.past() {
				return 0, errNothing
			}
		} else {
			ending = !h.arm()
		}
		n, err := h.c.Read(p)
		if n > 0 {
			h.hear()
			s.holdPartial(s.r.partial.Load() + decoded*int64(n))
			return n, nil
		}
		if h.try && errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, errNothing
		}
		if ending || !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
		if err := h.late(); err != nil {
			return 0, err
		}
	}
}

// past sets a deadline that has passed: a read then returns what the layers above the socket have. False: the stream ends.
func (h *monitoredReader) past() bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if !h.s.closeBy.IsZero() {
		return false
	}
	_ = h.c.SetReadDeadline(time.Unix(1, 0))
	return true
}

// hear records a sign of life. Data from a connection that has broken meanwhile do not count: the peer must resume
// first.
func (h *monitoredReader) hear() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.s.path.conn == h.c {
		h.s.live.Hear(time.Now())
	}
}
