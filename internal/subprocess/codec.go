package subprocess

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"sync"
	"syscall"
)

// Far bounds and looks at what the other end of a connection to another host sends. The zero value does neither.
type Far struct {
	Most  int64               // bytes of a command or an answer; 0: no bound
	Calls int                 // commands at a time; 0: no bound
	Look  func(v any) error   // looks at a decoded command or answer, and may change it; nil: nobody does
	Text  func(string) string // makes an error's text fit for a terminal; nil: as it came
}

// ErrTooLong is the error of a command or an answer above Far.Most. The connection is of no use then.
var ErrTooLong = errors.New("longer than this side takes")

// codec is net/rpc's own form, read with bounds. It implements rpc.ClientCodec and rpc.ServerCodec.
type codec struct {
	far  Far
	conn io.ReadWriteCloser
	dec  *gob.Decoder
	enc  *gob.Encoder
	out  *bufio.Writer
	left int64 // bytes that the frame may still have; used by the reader alone

	mu      sync.Mutex // guards calls
	fewer   *sync.Cond
	calls   int
	closing bool
}

func newCodec(conn io.ReadWriteCloser, far Far) *codec {
	c := &codec{far: far, conn: conn, out: bufio.NewWriter(conn)}
	c.fewer = sync.NewCond(&c.mu)
	c.dec, c.enc = gob.NewDecoder(bounded{c}), gob.NewEncoder(c.out)
	return c
}

// bounded reads a codec's connection.
type bounded struct{ *codec }

// Read implements io.Reader. The timeout of a socket ends a connection only while no command is at work.
func (b bounded) Read(p []byte) (int, error) {
	if b.far.Most > 0 {
		if b.left <= 0 {
			return 0, fmt.Errorf("%w: more than %d bytes", ErrTooLong, b.far.Most)
		}
		p = p[:min(int64(len(p)), b.left)]
	}
	for {
		n, err := b.conn.Read(p)
		if errors.Is(err, syscall.EAGAIN) && b.atWork() {
			continue
		}
		b.left -= int64(n)
		return n, err
	}
}

func (c *codec) atWork() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls > 0 && !c.closing
}

func (c *codec) head(v any) error {
	c.left = c.far.Most
	return c.dec.Decode(v)
}

func (c *codec) body(v any) error {
	err := c.dec.Decode(v)
	if err != nil || v == nil || c.far.Look == nil {
		return err
	}
	return c.far.Look(v)
}

func (c *codec) write(head, body any) error {
	err := errors.Join(c.enc.Encode(head), c.enc.Encode(body))
	if err != nil { // the other end would take the next frame for the rest of this one
		return errors.Join(err, c.Close())
	}
	return c.out.Flush()
}

// Close implements rpc.ClientCodec and rpc.ServerCodec.
func (c *codec) Close() error {
	c.mu.Lock()
	c.closing = true
	c.fewer.Broadcast()
	c.mu.Unlock()
	return c.conn.Close()
}

// WriteRequest implements rpc.ClientCodec.
func (c *codec) WriteRequest(r *rpc.Request, body any) error { return c.write(r, body) }

// ReadResponseHeader implements rpc.ClientCodec.
func (c *codec) ReadResponseHeader(r *rpc.Response) error {
	err := c.head(r)
	if c.far.Text != nil {
		r.Error = c.far.Text(r.Error)
	}
	return err
}

// ReadResponseBody implements rpc.ClientCodec.
func (c *codec) ReadResponseBody(v any) error { return c.body(v) }

// ReadRequestHeader implements rpc.ServerCodec. It waits while as many commands are at work as there may be.
func (c *codec) ReadRequestHeader(r *rpc.Request) error {
	c.mu.Lock()
	for c.far.Calls > 0 && c.calls >= c.far.Calls && !c.closing {
		c.fewer.Wait()
	}
	c.mu.Unlock()
	if err := c.head(r); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	return nil
}

// ReadRequestBody implements rpc.ServerCodec.
func (c *codec) ReadRequestBody(v any) error { return c.body(v) }

// WriteResponse implements rpc.ServerCodec. net/rpc calls it once for each request.
func (c *codec) WriteResponse(r *rpc.Response, body any) error {
	c.mu.Lock()
	c.calls--
	c.fewer.Broadcast()
	c.mu.Unlock()
	return c.write(r, body)
}
