package engine

import (
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/tcp/handshake"
	"gorail/backend/transfer"
	"gorail/internal/pattern"
)

// flipper is a man on the path of data. He changes one bit of the first connection's bytes towards the target.
type flipper struct {
	provider.Provider
	t           testing.TB
	at          int64 // the byte
	connections atomic.Int32
	flipped     atomic.Bool
}

type flippedRail struct {
	provider.Rail
	f *flipper
}

type flippedEndpoint struct {
	provider.Endpoint
	provider.Secured
	provider.Listener
	f *flipper
}

func (f *flipper) Open(d provider.Device) (provider.Rail, error) {
	r, err := f.Provider.Open(d)
	return flippedRail{r, f}, err
}

func (r flippedRail) OpenEndpoint() (provider.Endpoint, error) {
	ep, err := r.Rail.OpenEndpoint()
	if err != nil {
		return nil, err
	}
	return flippedEndpoint{ep, ep.(provider.Secured), ep.(provider.Listener), r.f}, nil
}

// Warnings implements provider.Warner.
func (r flippedRail) Warnings() []string { return r.Rail.(provider.Warner).Warnings() }

// Addr is the endpoint's address with the man's in it.
func (e flippedEndpoint) Addr() []byte {
	a, ok := handshake.Decode(e.Endpoint.Addr())
	require.True(e.f.t, ok)
	a.At = e.f.listen(a.At)
	return a.Encode()
}

func (f *flipper) listen(to netip.AddrPort) netip.AddrPort {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to.String())
			if err != nil {
				_ = c.Close()
				continue
			}
			go f.pass(out, c, f.connections.Add(1) == 1)
			go f.pass(c, out, false)
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func (f *flipper) pass(to, from net.Conn, flip bool) {
	defer to.Close()
	defer from.Close()
	if flip {
		if _, err := io.CopyN(to, from, f.at); err != nil {
			return
		}
		one := make([]byte, 1)
		if _, err := io.ReadFull(from, one); err != nil {
			return
		}
		one[0] ^= 4
		f.flipped.Store(true)
		if _, err := to.Write(one); err != nil {
			return
		}
	}
	_, _ = io.Copy(to, from)
}

// A bit that changes on the way ends the connection. Over the next one the transfer succeeds, and the bytes are right. A warning
// says what happened.
func TestFlippedRecordIsReplayed(t *testing.T) {
	t.Parallel()
	for _, at := range []int64{1000, 300_000, 2 << 20} {
		h := onTCP(t)
		f := &flipper{t: t, at: at}
		h.params = append(h.params, "encryption", "on", "tcp_threads", "1")
		a := h.agent("alice")
		h.wrap = func(p provider.Provider) provider.Provider { f.Provider = p; return f }
		b := h.agent("bob")
		h.wrap = nil
		loadBoth(a, b)
		from, to := a.memory(4<<20).fill(1), b.memory(4<<20).fill(2)
		r := a.whole(transfer.Write, from, to.seenBy(a))
		r.post("moved")
		require.Equal(t, done, r.wait())
		pattern.Same(t, from.b, to.b)
		require.True(t, f.flipped.Load())
		require.Greater(t, f.connections.Load(), int32(1), "another connection was made")
		until(t, "a warning", func() bool { return h.log.has("was changed on the way") })
	}
}
