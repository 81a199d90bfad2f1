package peer

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// engine is one end's blob and key.
type engine struct {
	blob wire.ConnBlob
	key  *trust.Key
}

func newEngine(t testing.TB) *engine {
	key, err := trust.NewKey()
	require.NoError(t, err)
	e := &engine{wire.ConnBlob{Engine: key.Pin.Engine(), Pin: key.Pin}, key}
	_, _ = rand.Read(e.blob.Token[:])
	return e
}

// wired returns both ends of a TCP connection on loopback.
func wired(t testing.TB) (here, there net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	here, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	there, err = l.Accept()
	require.NoError(t, err)
	for _, c := range []net.Conn{here, there} {
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		t.Cleanup(func() { c.Close() })
	}
	return here, there
}

// accept is the target's side; why is its Reject.
func (e *engine) accept(c net.Conn) (s *SecureConn, why *wire.Reject, err error) {
	o, err := Challenge(c)
	if err != nil {
		return nil, nil, err
	}
	if why, err = o.ReadOpen(&e.blob); err != nil || why != nil {
		if why != nil {
			err = wire.WriteFrame(c, why)
		}
		return nil, why, err
	}
	if err = o.ReadFirst(); err != nil {
		return nil, nil, err
	}
	waits := 0
	if s, err = o.Accept(&e.blob, e.key, func() { waits++ }); err == nil && waits != 1 {
		err = fmt.Errorf("it waited %d times", waits)
	}
	return s, nil, err
}

type taken struct {
	conn *SecureConn
	why  *wire.Reject
	err  error
}

// connect authenticates a new connection from one engine to what it holds for another.
func connect(t testing.TB, from *engine, to wire.ConnBlob, target *engine) (*SecureConn, taken, error) {
	here, there := wired(t)
	done := make(chan taken, 1)
	go func() {
		var a taken
		a.conn, a.why, a.err = target.accept(there)
		done <- a
	}()
	challenge, err := ReadChallenge(here)
	require.NoError(t, err)
	c, err := Connect(here, challenge, &to, from.key)
	if err != nil {
		here.Close()
	}
	return c, <-done, err
}

// Both ends agree on the connection, and bytes of any number go through.
func TestConnect(t *testing.T) {
	a, b := newEngine(t), newEngine(t)
	c, there, err := connect(t, a, b.blob, b)
	require.NoError(t, err)
	require.NoError(t, there.err)
	assert.Equal(t, c.Bind, there.conn.Bind)
	assert.Equal(t, c.Ends, there.conn.Ends)
	assert.True(t, there.conn.Proves(a.blob.Engine))
	assert.False(t, there.conn.Proves(b.blob.Engine))
	sent := make([]byte, 3*mostWritten+17)
	_, _ = rand.Read(sent)
	go func() {
		_, _ = c.Write(sent)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(there.conn)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(sent, got))
}

// A Reject in clear reaches the initiator with its code.
func TestSecureRefusals(t *testing.T) {
	a, b := newEngine(t), newEngine(t)
	for code, change := range map[wire.Code]func(*wire.ConnBlob){
		wire.CodeToken:  func(to *wire.ConnBlob) { to.Token[0]++ },
		wire.CodeEngine: func(to *wire.ConnBlob) { to.Engine[0]++ },
	} {
		to := b.blob
		change(&to)
		_, there, err := connect(t, a, to, b)
		var refused *refused
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, code, refused.Reject.Code)
		assert.Equal(t, code, there.why.Code)
	}
}

// A target with another key is found out before it gets a frame.
func TestWrongKey(t *testing.T) {
	a, b, other := newEngine(t), newEngine(t), newEngine(t)
	stolen := &engine{b.blob, other.key}
	_, _, err := connect(t, a, b.blob, stolen)
	assert.ErrorIs(t, err, trust.ErrPin)
	assert.ErrorIs(t, err, ErrProtocol)
}

// A changed byte of any record ends the connection, and nothing changed is delivered.
func TestFlippedByte(t *testing.T) {
	a, b := newEngine(t), newEngine(t)
	c, there, err := connect(t, a, b.blob, b)
	require.NoError(t, err)
	record := make([]byte, 64)
	_, err = c.Conn.Write(append([]byte{0x17, 3, 3, 0, byte(len(record))}, record...)) // a forged record of TLS
	require.NoError(t, err)
	n, err := there.conn.Read(make([]byte, 100))
	assert.Zero(t, n)
	assert.ErrorContains(t, err, "bad record MAC")
}

// Close does not wait for a peer that does not read.
func TestCloseWaitsForNobody(t *testing.T) {
	a, b := newEngine(t), newEngine(t)
	c, _, err := connect(t, a, b.blob, b)
	require.NoError(t, err)
	full := make(chan struct{})
	go func() {
		defer close(full)
		for err := error(nil); err == nil; {
			_, err = c.Write(make([]byte, 1<<20))
		}
	}()
	time.Sleep(50 * time.Millisecond) // the socket may be full, or the Write is under way: Close must not wait for either
	start := time.Now()
	require.NoError(t, c.Close())
	<-full
	assert.Less(t, time.Since(start), 4*time.Second, "tls.Conn.Close takes 5 s")
}

// A peer that does not read, and sends a record that TLS has to answer, does not hold the reader for ever.
func TestAlertBehindABlockedWrite(t *testing.T) {
	a, b := newEngine(t), newEngine(t)
	c, there, err := connect(t, a, b.blob, b)
	require.NoError(t, err)
	wrote := make(chan error, 1)
	var records atomic.Int64
	go func() {
		var err error
		for err == nil {
			_, err = there.conn.Write(make([]byte, mostWritten))
			records.Add(1)
		}
		wrote <- err
	}()
	before := int64(-1)
	require.Eventually(t, func() bool { was := before; before = records.Load(); return was == before }, time.Minute, 100*time.Millisecond, "the socket is full")
	_, err = c.Conn.Write(append([]byte{0x17, 3, 3, 0, 64}, make([]byte, 64)...)) // not a record of this connection
	require.NoError(t, err)
	_, err = there.conn.Read(make([]byte, 1)) // its alert may have to wait for the Write
	require.Error(t, err)
	require.NoError(t, there.conn.Close())
	require.Error(t, <-wrote)
}

// The first record of TLS is read before anything is done for it. It has a bound.
func TestReadFirst(t *testing.T) {
	for text, err := range map[string]error{
		"":                              io.EOF,
		"\x16\x03\x01\x01":              io.ErrUnexpectedEOF,
		"\x16\x03\x01\x00\x02a":         io.ErrUnexpectedEOF,
		"\x16\x03\x01\x10\x01":          ErrProtocol,
		"\x16\x03\x01\x00\x02ab":        nil,
		"\x16\x03\x01\x00\x00":          nil,
		"\x16\x03\x01\x00\x02abanother": nil,
	} {
		here, there := wired(t)
		_, _ = here.Write([]byte(text))
		here.Close()
		o := &opening{conn: there}
		assert.ErrorIs(t, o.ReadFirst(), err, "%q", text)
		waits := 0
		rest := ""
		if err == nil {
			all, _ := io.ReadAll(&beganWith{there, o.first, func() { waits++ }})
			rest = string(all)
			assert.Equal(t, 1, waits)
			assert.Equal(t, text, rest)
		}
	}
}
