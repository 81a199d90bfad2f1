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
	a, b := n.connected()
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

// TestLeftOverWakes: a poll that leaves bytes in sockets wakes a thread that sleeps, since the application may not poll again.
func TestLeftOverWakes(t *testing.T) {
	t.Parallel()
	const whole = 8 << 20
	n, m := newNode(t, whole, nil), newNode(t, whole, nil)
	a, b := connectNodes(t, n, m)
	r := m.register(0, whole, access.Both)
	n.asleep()
	m.asleep()
	for at := 0; at < whole; at += 1 << 20 {
		require.NoError(t, n.d.RMA(a.Core(), drive.Write, n.id(), drive.Seg{Local: drive.Addr(n.mem) + uint64(at), Remote: r.Base() + uint64(at), Len: 1 << 20, Key: keyOf(r)}))
	}
	polls := 0
	for end := time.Now().Add(20 * time.Second); len(n.done) < int(n.next); n.poll() {
		require.True(t, time.Now().Before(end), "%d of %d, %d polls", len(n.done), n.next, polls)
		if m.d.Readable() { // else nobody polls the other end
			m.poll()
			polls++
		}
	}
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}
