package tcp

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/trust"
	"gorail/test/drive"
	"gorail/test/tcpmodel"
)

// States of a TCP socket, of linux/tcp_states.h.
const (
	stateClose     = 7
	stateCloseWait = 8
)

// watched is a node that knows its newest socket.
func watched(t *testing.T, tune func(fd int)) (n *node, state func() uint8) {
	fds := make(chan int, 16)
	n = newNode(t, 2<<20, func(fd int) {
		if tune != nil {
			tune(fd)
		}
		fds <- fd
	})
	fd := -1
	return n, func() uint8 {
		if fd < 0 {
			fd = <-fds
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		require.NoError(t, err)
		return info.State
	}
}

// small makes a socket take little at once.
func small(fd int) { _ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1) }

// TestEndBehindBytes: the end of a connection is noticed without a second edge if it came together with bytes.
func TestEndBehindBytes(t *testing.T) {
	t.Parallel()
	n, state := watched(t, nil)
	v := &rules{node: n}
	s := n.meet(t)
	defer s.close()
	id := v.post(s, drive.Read, 64)
	s.want(tcpmodel.Read)
	_, err := s.c.Write(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Goodbye}, nil).Encode())
	require.NoError(t, err)
	require.NoError(t, s.c.CloseWrite())
	for state() != stateCloseWait {
	}
	v.sleeps()
	require.Contains(t, v.done, id, "the victim sleeps, and does not know that the connection has ended")
}

// sleeps polls as the core's thread does, until it would sleep.
func (v *rules) sleeps() {
	v.t.Helper()
	for quiet := false; !quiet; {
		had := len(v.done)
		v.poll()
		quiet = len(v.done) == had && v.d.Arm() && !v.d.Readable()
	}
}

// TestResetAfterGoodbye: a peer that says goodbye and has not received all has not failed.
func TestResetAfterGoodbye(t *testing.T) {
	t.Parallel()
	n, state := watched(t, nil)
	v := &rules{node: n}
	s := n.meet(t)
	defer s.close()
	receive := v.recv(s, 64)
	id := v.post(s, drive.WriteUnsignaled, 64)
	require.Zero(t, v.result(id))
	_, err := s.c.Write(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Goodbye}, nil).Encode())
	require.NoError(t, err)
	require.NoError(t, s.c.Close()) // with bytes that it has not received: a reset
	for state() != stateClose {
	}
	v.sleeps()
	require.NotContains(t, v.done, receive)
	require.ErrorIs(t, v.d.RMA(s.ep.Core(), drive.Write, v.id(), drive.Seg{}), syscall.ENOTCONN)
}

// TestRefusalNames: the refused segment belongs to an operation, or to an unsignaled WRITE that the next signaled one proves.
func TestRefusalNames(t *testing.T) {
	t.Parallel()
	v := &rules{node: newNode(t, nodeMem, nil)}
	for index, guilty := range []int{1, 1, 1, 1, 2} {
		s := v.meet(t)
		seg := drive.Seg{Local: drive.Addr(v.mem), Remote: tcpmodel.At(3, 0), Len: 8, Key: 9}
		ids := []uint64{v.id(), v.id(), v.id()}
		require.NoError(t, v.d.Together(drive.Op{Ep: s.ep.Core(), Kind: drive.WriteUnsignaled, ID: ids[0], Segs: []drive.Seg{seg}},
			drive.Op{Ep: s.ep.Core(), Kind: drive.Write, ID: ids[1], Segs: []drive.Seg{seg, seg, seg}},
			drive.Op{Ep: s.ep.Core(), Kind: drive.Write, ID: ids[2], Segs: []drive.Seg{seg}}))
		f := s.want(tcpmodel.Write)
		require.Len(t, f.Segs, 5)
		s.send(tcpmodel.New(tcpmodel.Header{Op: tcpmodel.Refused, Seq: f.Seq, ID: uint32(index), Status: uint32(syscall.EACCES)}, nil))
		for i, id := range ids {
			want := map[bool]syscall.Errno{true: syscall.EACCES, false: syscall.ECANCELED}[i == guilty]
			if i == 0 {
				want = 0 // it has ended before
			}
			require.Equal(t, want, v.result(id), "segment %d, operation %d", index, i)
		}
		s.close()
	}
}

// TestReceiveBehindHalfMessage: a receive that is posted while a message comes in gets that message, and the next receive the next.
func TestReceiveBehindHalfMessage(t *testing.T) {
	t.Parallel()
	v := &rules{node: newNode(t, nodeMem, nil)}
	s := v.meet(t)
	defer s.close()
	first, second := message(1, 3000), message(2, 3000)
	for i := range first.Body {
		first.Body[i], second.Body[i] = 1, 2
	}
	text := first.Encode()
	s.raw(text[:1000])
	for range 50 {
		s.look()
	}
	at := func(i int) []byte { return v.mem[i*4096:][:4096] }
	var ids [3]uint64
	for i := range ids {
		ids[i] = v.id()
		require.NoError(t, v.d.Recv(s.ep.Core(), ids[i], at(i), nil))
	}
	s.raw(text[1000:])
	s.send(second)
	for i := range 2 {
		require.Zero(t, v.result(ids[i]))
		require.EqualValues(t, 3000, v.done[ids[i]].Len)
		require.Equal(t, byte(i+1), at(i)[0], "receive %d has another message", i)
	}
	require.NotContains(t, v.done, ids[2])
}

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
				if m, err := r.Register(4096, 4096, 0, option.PeersBoth); err == nil {
					_ = m.Close()
				}
			})
		}
		all.Go(func() { _ = r.Close() }) // EBUSY, or success
		all.Wait()
		require.NoError(t, r.Close())
		_, err := r.OpenEndpoint()
		require.ErrorIs(t, err, provider.ErrEndpoint)
		_, err = r.Register(4096, 4096, 0, option.PeersBoth)
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
	require.Zero(t, n.rail.at.Load().listener.Waiting())
}

// TestSecretsAreWiped: both ends derive the secret of their link when they need it, and wipe it then.
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
		e.(provider.Listener).Secure(s)
		return e
	}
	a, b, alone := open(true), open(false), open(false)
	require.NoError(t, alone.Connect(a.Addr()))
	require.NoError(t, alone.Close())
	require.NoError(t, a.Connect(b.Addr()))
	require.NoError(t, b.Connect(a.Addr()))
	id := n.id()
	require.NoError(t, n.d.Send(a.Core(), id, n.mem[:8], nil))
	n.until("a message", func() bool { _, ok := n.done[id]; return ok })
	require.Zero(t, n.done[id].Err)
	for _, e := range []provider.Endpoint{a, b} {
		require.NoError(t, e.Close())
	}
	n.rail.dials.Wait()
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, secrets, 2)
	for _, s := range secrets {
		require.Equal(t, trust.LinkSecret{}, *s)
	}
}

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
		"broken": func(e *endpoint) { e.broken(syscall.ECONNREFUSED) },
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
	to := m.register(0, page, option.PeersBoth)
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
