package peer

import (
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// sendBuffer is how many bytes one direction of a connection holds before a write waits.
const sendBuffer = 256 << 10

// flow is one direction of a connection: what was written and not read, with the time at which it arrives.
type flow struct {
	path *simPath
	dir  direction

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced with each change
	chunks   []chunk
	bytes    int
	last     time.Time // arrival of the last chunk
	failed   error     // a reset: nothing more is read or written
	ended    bool      // the writer has closed
	cut      bool      // the network ended it in the writer's name
	closed   bool      // the reader has closed
	vanished bool      // what is written arrives nowhere
	flips    []int     // distances, in bytes that are read, to bytes with a bit to flip
	spoiled  bool      // a flipped bit was read
	readBy   time.Time
	writeBy  time.Time
}

// chunk is what one write sent. Without bytes it is the end.
type chunk struct {
	at time.Time
	b  []byte
}

// change runs f under the lock, and wakes those who wait.
func (f *flow) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

// read takes what has arrived. next is when more arrives; zero: unknown.
func (f *flow) read(p []byte) (n int, next time.Time, err error) {
	now := time.Now()
	switch {
	case f.closed:
		return 0, next, net.ErrClosed
	case f.failed != nil:
		return 0, next, f.failed
	case !f.readBy.IsZero() && !now.Before(f.readBy):
		return 0, next, os.ErrDeadlineExceeded
	case len(f.chunks) == 0 || f.vanished:
		return 0, next, nil
	}
	if stalled := f.path.stalledUntil(f.dir, now); now.Before(stalled) {
		return 0, stalled, nil
	}
	c := &f.chunks[0]
	switch {
	case now.Before(c.at):
		return 0, c.at, nil
	case len(c.b) == 0:
		return 0, next, io.EOF
	}
	n = copy(p, c.b)
	if c.b = c.b[n:]; len(c.b) == 0 {
		f.chunks = f.chunks[1:]
	}
	f.bytes -= n
	f.flip(p[:n])
	return n, next, nil
}

// flip flips the bits that are due in p.
func (f *flow) flip(p []byte) {
	left := f.flips[:0]
	for _, at := range f.flips {
		if at < len(p) {
			p[at] ^= 1 << (at % 8)
			f.spoiled = true
		} else {
			left = append(left, at-len(p))
		}
	}
	f.flips = left
}

// write queues p, or tells to wait (n is 0).
func (f *flow) write(p []byte) (n int, err error) {
	now := time.Now()
	switch {
	case f.ended:
		return 0, net.ErrClosed
	case f.failed != nil:
		return 0, f.failed
	case f.cut:
		return 0, syscall.EPIPE
	case !f.writeBy.IsZero() && !now.Before(f.writeBy):
		return 0, os.ErrDeadlineExceeded
	case f.bytes >= sendBuffer:
		return 0, nil
	}
	f.bytes += len(p)
	f.queue(append([]byte(nil), p...), now)
	return len(p), nil
}

func (f *flow) queue(p []byte, now time.Time) {
	if at := now.Add(f.path.latency(now)); at.After(f.last) {
		f.last = at
	}
	f.chunks = append(f.chunks, chunk{f.last, p})
}

// simConn is one end of a connection.
type simConn struct {
	in, out       *flow
	local, remote netip.AddrPort
}

func (c *simConn) Read(p []byte) (int, error) {
	for f := c.in; ; {
		f.mu.Lock()
		n, next, err := f.read(p)
		changed, by := f.changed, f.readBy
		f.mu.Unlock()
		if n > 0 {
			f.change(func() {}) // room for a writer
		}
		if n > 0 || err != nil {
			return n, c.explain("read", err)
		}
		waitFor(changed, next, by)
	}
}

func (c *simConn) Write(p []byte) (int, error) {
	for f := c.out; ; {
		n, err, orphan := 0, error(nil), false
		f.change(func() { n, err = f.write(p); orphan = f.closed && !f.vanished })
		f.mu.Lock()
		changed, by := f.changed, f.writeBy
		f.mu.Unlock()
		if orphan { // nobody is there to read it: the other host answers with a reset
			delay := f.path.latency(time.Now())
			time.AfterFunc(2*delay, func() { c.reset() })
		}
		if n > 0 || err != nil {
			return n, c.explain("write", err)
		}
		waitFor(changed, time.Time{}, by)
	}
}

// waitFor waits for a change or one of the times; the zero time does not come.
func waitFor(changed <-chan struct{}, times ...time.Time) {
	var first time.Time
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	if first.IsZero() {
		<-changed
		return
	}
	timer := time.NewTimer(time.Until(first))
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	}
}

// explain makes an error as package net has them.
func (c *simConn) explain(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// reset breaks this end alone. The other end finds out when it writes.
func (c *simConn) reset() {
	for _, f := range []*flow{c.in, c.out} {
		f.change(func() {
			if f.failed == nil {
				f.failed = syscall.ECONNRESET
			}
		})
	}
}

func (c *simConn) CloseWrite() error {
	f := c.out
	f.change(func() {
		if !f.ended {
			f.ended = true
			f.queue(nil, time.Now())
		}
	})
	return nil
}

func (c *simConn) Close() error {
	c.in.change(func() { c.in.closed = true })
	return c.CloseWrite()
}

// isClosed reports whether this end was closed by its side.
func (c *simConn) isClosed() bool {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return c.in.closed
}

func (c *simConn) SetReadDeadline(t time.Time) error {
	c.in.change(func() { c.in.readBy = t })
	return nil
}

func (c *simConn) SetWriteDeadline(t time.Time) error {
	c.out.change(func() { c.out.writeBy = t })
	return nil
}

func (c *simConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *simConn) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(c.local) }
func (c *simConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }
