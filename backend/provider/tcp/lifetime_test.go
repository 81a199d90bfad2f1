package tcp

import (
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/access"
	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
	"gorail/backend/trust"
)

// TestClosedRail: a closed rail gives no endpoint and no region, also if they are asked for while it closes.
func TestClosedRail(t *testing.T) {
	t.Parallel()
	for range 20 {
		r := openTuned(t, nil)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if e, err := r.OpenEndpoint(); err == nil {
					_ = e.Close()
				}
				if m, err := r.Register(4096, 4096, 0, access.Both); err == nil {
					_ = m.Close()
				}
			})
		}
		all.Go(func() { _ = r.Close() }) // EBUSY, or success
		all.Wait()
		require.NoError(t, r.Close())
		_, err := r.OpenEndpoint()
		require.ErrorIs(t, err, provider.ErrEndpoint)
		_, err = r.Register(4096, 4096, 0, access.Both)
		require.ErrorIs(t, err, provider.ErrRegister)
	}
}

// TestCloseWhileConnecting: an endpoint that is closed during Connect waits for nobody afterwards.
func TestCloseWhileConnecting(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeMem, nil)
	for range 1000 {
		ep, err := n.rail.OpenEndpoint()
		require.NoError(t, err)
		e := ep.(*endpoint)
		e.Secure(security(false))
		var all sync.WaitGroup
		all.Go(func() { _ = e.Connect(e.Addr()) }) // or it is closed
		all.Go(func() { _ = e.Close() })
		all.Wait()
	}
	n.rail.listener.mu.Lock()
	defer n.rail.listener.mu.Unlock()
	require.Empty(t, n.rail.listener.waiting)
}

// TestSecretsAreWiped: an endpoint wipes its link's secret when it has a connection, and when it is closed.
func TestSecretsAreWiped(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeMem, nil)
	var mu sync.Mutex
	var secrets []*trust.LinkSecret
	open := func(initiator bool) provider.Endpoint {
		e, err := n.rail.OpenEndpoint()
		require.NoError(t, err)
		s := security(initiator)
		s.Link = func(k trust.Ticket) *trust.LinkSecret {
			mu.Lock()
			defer mu.Unlock()
			secrets = append(secrets, linkOf(k))
			return secrets[len(secrets)-1]
		}
		e.(provider.Secured).Secure(s)
		return e
	}
	a, b, alone := open(true), open(false), open(false)
	require.NoError(t, alone.Connect(a.Addr()))
	require.NoError(t, alone.Close())
	require.Equal(t, trust.LinkSecret{}, *secrets[0])
	require.NoError(t, a.Connect(b.Addr()))
	require.NoError(t, b.Connect(a.Addr()))
	id := n.id()
	require.NoError(t, n.d.Send(a.Core(), id, n.mem[:8], nil))
	n.until("a message", func() bool { _, ok := n.done[id]; return ok })
	require.Zero(t, n.done[id].Err)
	for i, e := range []provider.Endpoint{a, b} { // an acknowledgement shows that both have the connection
		e.(*endpoint).mu.Lock()
		require.Equal(t, trust.LinkSecret{}, *secrets[i+1])
		e.(*endpoint).mu.Unlock()
		require.NoError(t, e.Close())
	}
}

// TestAnswerIsLost: an initiator that is gone before it gets the answer has spent the ticket. The target's endpoint fails at once:
// else both ends would wait for connect_timeout.
func TestAnswerIsLost(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeMem, nil)
	e := n.target()
	defer e.Close()
	id := n.id()
	require.NoError(t, n.d.Send(e.Core(), id, n.mem[:8], nil))
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer l.Close()
	c := dialAt(t, endpointAddr{at: l.Addr().(*net.TCPAddr).AddrPort()}, "127.0.0.1")
	to := addrOf(t, e)
	_, err = c.Write(newOpening(to.ticket, linkOf(to.ticket)))
	require.NoError(t, err)
	in, err := l.AcceptTCP()
	require.NoError(t, err)
	reset(c)
	raw, err := in.SyscallConn()
	require.NoError(t, err)
	for state := uint8(0); state != stateClose; {
		require.NoError(t, raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			require.NoError(t, err)
			state = info.State
		}))
	}
	n.rail.listener.admit(in)
	n.until("the end of the endpoint", func() bool { _, ok := n.done[id]; return ok })
	require.Contains(t, []syscall.Errno{syscall.ECONNRESET, syscall.EPIPE}, n.done[id].Err)
	require.ErrorIs(t, n.d.RMA(e.Core(), drive.Write, n.id(), drive.Seg{}), n.done[id].Err)
}
