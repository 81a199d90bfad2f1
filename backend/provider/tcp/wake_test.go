package tcp

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/provider/fake/drive"
)

// asleep polls until the rail may be slept on.
func (n *node) asleep() {
	n.t.Helper()
	n.until("nothing to do", n.d.Arm)
	require.False(n.t, n.d.Readable())
}

// woken waits for the rail's descriptor, as a thread that sleeps does. It polls nothing.
func (n *node) woken(why string) {
	n.t.Helper()
	for end := time.Now().Add(20 * time.Second); !n.d.Readable(); time.Sleep(100 * time.Microsecond) {
		require.True(n.t, time.Now().Before(end), "%s: nobody is woken", why)
	}
}

// TestFailureWakes: a connection that cannot be made, or is closed, wakes a thread that sleeps on the rail: no event of a socket does.
func TestFailureWakes(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeMem, nil)
	for name, end := range map[string]func(e *endpoint){
		"broken": func(e *endpoint) { e.Broken(syscall.ECONNREFUSED) },
		"closed": func(e *endpoint) { require.NoError(t, e.Close()) },
	} {
		e, id := n.target(), n.id()
		require.NoError(t, n.d.Send(e.Core(), id, n.mem[:8], nil))
		n.asleep()
		end(e)
		n.woken(name)
		n.poll()
		require.NotZero(t, n.done[id].Err, name)
		require.NoError(t, e.Close())
		n.asleep() // one wake is enough
	}
}

// TestEarlyMessageWakes: a message that came before its receive is delivered by the post of the receive, and wakes.
func TestEarlyMessageWakes(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeMem, nil)
	a, b := n.connectTo(n)
	sent, got := n.id(), n.id()
	require.NoError(t, n.d.Send(a.Core(), sent, n.mem[:8], nil))
	n.until("the acknowledgement", func() bool { _, ok := n.done[sent]; return ok })
	n.asleep()
	require.NoError(t, n.d.Recv(b.Core(), got, n.mem[100:200], nil))
	n.woken("a message")
	n.poll()
	require.EqualValues(t, 8, n.done[got].Len)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// TestLeftOverWakes: a poll that leaves completions wakes a thread that sleeps, since the application may not poll again.
func TestLeftOverWakes(t *testing.T) {
	t.Parallel()
	n, m := newNode(t, nodeMem, nil), newNode(t, nodeMem, nil)
	a, b := n.connectTo(m)
	for i := range 2 {
		require.NoError(t, m.d.Recv(b.Core(), m.id(), m.mem[100*i:][:100], nil))
	}
	id := n.id() // until both ends are connected
	require.NoError(t, n.d.Send(a.Core(), id, n.mem[:8], nil))
	n.until("the acknowledgement", func() bool { m.poll(); _, ok := n.done[id]; return ok })
	n.asleep()
	for range 15 { // the next poll asks epoll, and takes the edge
		n.poll()
	}
	ids := []uint64{n.id(), n.id()}
	require.NoError(t, n.d.Together(drive.Op{Ep: a.Core(), Kind: drive.Send, ID: ids[0], Segs: drive.Msg(n.mem[:8], nil)},
		drive.Op{Ep: a.Core(), Kind: drive.Send, ID: ids[1], Segs: drive.Msg(n.mem[8:16], nil)})) // acknowledged together
	m.until("an acknowledgement", func() bool { return n.d.Readable() })
	comps, err := n.d.Poll(1)
	require.NoError(t, err)
	require.Len(t, comps, 1)
	n.woken("a completion that was left")
	n.until("the other completion", func() bool { _, ok := n.done[ids[1]]; return ok })
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// TestSentWakes: unsignaled WRITEs end when the post sends them. The thread that sleeps is woken to post more: the peer acknowledges nothing.
func TestSentWakes(t *testing.T) {
	t.Parallel()
	n, m := newNode(t, nodeMem, nil), newNode(t, nodeMem, nil)
	a, b := n.connectTo(m)
	to := m.register(0, page, access.Both)
	id := n.id() // until both ends are connected
	require.NoError(t, m.d.Recv(b.Core(), m.id(), m.mem[page:][:100], nil))
	require.NoError(t, n.d.Send(a.Core(), id, n.mem[:8], nil))
	n.until("the acknowledgement", func() bool { m.poll(); _, ok := n.done[id]; return ok })
	n.asleep()
	id = n.id()
	require.NoError(t, n.d.RMA(a.Core(), drive.WriteUnsignaled, id, drive.Seg{Local: drive.Addr(n.mem), Remote: to.Base(), Len: 64, Key: keyOf(to)}))
	n.woken("a WRITE that was sent")
	n.poll()
	require.Contains(t, n.done, id)
	require.Zero(t, n.done[id].Err)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}
