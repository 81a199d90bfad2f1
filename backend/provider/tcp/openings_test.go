package tcp

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/provider/fake/drive"
	"gorail/backend/provider/tcp/model"
	"gorail/backend/trust"
)

func addrOf(t *testing.T, e *endpoint) endpointAddr {
	t.Helper()
	to, ok := decodeAddr(e.Addr())
	require.True(t, ok)
	return to
}

// silent requires that the connection ends and gave no byte.
func silent(t *testing.T, c *net.TCPConn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	got, err := io.ReadAll(c)
	require.Empty(t, got, "a stranger got bytes")
	require.False(t, err != nil && isTimeout(err), "the connection stays")
	_ = c.Close()
}

// accepted requires the answer to an opening.
func accepted(t *testing.T, c *net.TCPConn, opening []byte, s *trust.LinkSecret) {
	t.Helper()
	text := make([]byte, answerLen)
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := io.ReadFull(c, text)
	require.NoError(t, err)
	require.NoError(t, checkAnswer(opening, text, s))
}

// TestSilentConnections: connections that say nothing take 64 places, 8 from one address, for a second. They get no byte. An honest
// peer gets in meanwhile.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	n, peer := newNode(t, nodeMem, nil), newNode(t, nodeMem, nil)
	whole := n.register(0, nodeMem, access.Both)
	to := endpointAddr{at: n.rail.listener.addr()}
	start := time.Now()
	var held []*net.TCPConn
	for len(held) < 1000 && n.rail.listener.limited.Load() == 0 { // the ninth is reset; on a starved host the first have gone then
		if c, err := dialFrom(to, "127.0.0.2"); err == nil { // else it was reset at once
			held = append(held, c)
		}
	}
	require.GreaterOrEqual(t, len(held), perSource)
	for source := 3; source < 3+openings/perSource; source++ {
		for range perSource {
			held = append(held, dialAt(t, to, fmt.Sprintf("127.0.0.%d", source)))
		}
	}
	ep, _ := join(t, peer, n)
	id := peer.id()
	require.NoError(t, peer.d.RMA(ep.Core(), drive.Write, id, drive.Seg{Local: drive.Addr(peer.mem), Remote: whole.Base(), Len: 4096, Key: keyOf(whole)}))
	peer.until("an honest peer's WRITE", func() bool { n.poll(); _, ok := peer.done[id]; return ok })
	require.Zero(t, peer.done[id].Err)
	for i, c := range held {
		silent(t, c)
		if i == len(held)-1 {
			require.Greater(t, time.Since(start), openingTime, "the last one had its second")
		}
	}
	require.Positive(t, n.rail.listener.limited.Load())
}

// TestOpenings: what is no opening of the link gets no byte, and spends no ticket. An opening works once.
func TestOpenings(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeMem, nil)
	e := n.target()
	defer func() { require.NoError(t, e.Close()) }()
	to := addrOf(t, e)
	secret := linkOf(to.ticket)
	changed := func(at int) []byte {
		b := newOpening(to.ticket, secret)
		b[at] ^= 1
		return b
	}
	strangers := map[string][]byte{
		"a frame":                model.New(model.Header{Op: model.Write, Seq: 1}, make([]byte, 100), model.Segment{}).Encode(),
		"zeros":                  make([]byte, openingLen),
		"HTTP":                   []byte("GET / HTTP/1.1\r\nHost: somewhere.example.org\r\nUser-Agent: something that looks around\r\nAccept: */*\r\n\r\n"),
		"another ticket":         newOpening(trust.Ticket{1}, linkOf(trust.Ticket{1})),
		"another link's secret":  newOpening(to.ticket, linkOf(trust.Ticket{1})),
		"an ended opening":       newOpening(to.ticket, secret)[:openingLen-1],
		"nothing but an end":     {},
		"a changed nonce":        changed(8 + 2 + 6 + 16),
		"a changed proof":        changed(openingBody),
		"the proof's last byte":  changed(openingLen - 1),
		"a changed zero":         changed(10),
		"another version":        changed(8),
		"a changed magic":        changed(0),
		"a changed magic's end":  changed(7),
		"a changed ticket":       changed(16),
		"a good one behind junk": append([]byte{0}, newOpening(to.ticket, secret)...),
	}
	for name, text := range strangers {
		t.Run(name, func(t *testing.T) {
			c := dialAt(t, to, "127.0.0.1")
			_, err := c.Write(text)
			require.NoError(t, err)
			_ = c.CloseWrite() // it may be reset already
			silent(t, c)
		})
	}
	opening := newOpening(to.ticket, secret)
	for try, in := 0, false; !in; try++ { // byte by byte; on a starved host that may take too long
		require.Less(t, try, 10)
		c := dialAt(t, to, "127.0.0.1")
		defer c.Close()
		start := time.Now()
		for _, b := range opening {
			_, _ = c.Write([]byte{b})
		}
		if in = time.Since(start) < openingTime/2; in {
			accepted(t, c, opening, secret)
		}
	}
	for name, text := range map[string][]byte{"a spent ticket": newOpening(to.ticket, secret), "the same opening again": opening} {
		t.Run(name, func(t *testing.T) {
			again := dialAt(t, to, "127.0.0.1")
			_, err := again.Write(text)
			require.NoError(t, err)
			silent(t, again)
		})
	}
}

// TestTicketOfTwo: two connections present one ticket at once. One gets in.
func TestTicketOfTwo(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeMem, nil)
	in := 0
	for range 20 {
		e := n.target()
		to := addrOf(t, e)
		secret := linkOf(to.ticket)
		got := make(chan int, 2)
		var all [2]*net.TCPConn
		for i := range all {
			all[i] = dialAt(t, to, "127.0.0.1")
		}
		for _, c := range all {
			go func() {
				_, _ = c.Write(newOpening(to.ticket, secret))
				_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
				k, _ := io.ReadFull(c, make([]byte, answerLen))
				got <- k
			}()
		}
		if sum := <-got + <-got; sum > 0 { // on a starved host both may be late
			require.Equal(t, answerLen, sum, "one of two gets an answer")
			in++
		}
		require.NoError(t, e.Close())
		for _, c := range all {
			_ = c.Close()
		}
	}
	require.Positive(t, in)
}

// TestShutEndpoints: an endpoint that is shut, closed or does not wait yet lets nobody in.
func TestShutEndpoints(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeMem, nil)
	for name, end := range map[string]func(e *endpoint){"shut": (*endpoint).Shut, "closed": func(e *endpoint) { require.NoError(t, e.Close()) }} {
		e := n.target()
		to := addrOf(t, e)
		end(e)
		c := dialAt(t, to, "127.0.0.1")
		_, err := c.Write(newOpening(to.ticket, linkOf(to.ticket)))
		require.NoError(t, err, name)
		silent(t, c)
		require.NoError(t, e.Close())
	}
	ep, err := n.rail.OpenEndpoint()
	require.NoError(t, err)
	defer ep.Close()
	to := addrOf(t, ep.(*endpoint))
	c := dialAt(t, to, "127.0.0.1")
	_, err = c.Write(newOpening(to.ticket, linkOf(to.ticket)))
	require.NoError(t, err)
	silent(t, c)
}

// TestFramesWithOpening: frames that come together with the opening are not lost.
func TestFramesWithOpening(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeMem, nil)
	v := &rules{node: n}
	v.whole = n.register(wholeAt, wholeLen, access.Both)
	e := n.target()
	to := addrOf(t, e)
	s := &stranger{t: t, v: n, ep: e, c: dialAt(t, to, "127.0.0.1")}
	defer s.close()
	opening := newOpening(to.ticket, linkOf(to.ticket))
	_, err := s.c.Write(append(bytes.Clone(opening), v.write(1, 64).Encode()...))
	require.NoError(t, err)
	accepted(t, s.c, opening, linkOf(to.ticket))
	require.Equal(t, uint64(1), s.acked(1))
	require.Equal(t, byte(0xee), n.mem[wholeAt+63])
}
