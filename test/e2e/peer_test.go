package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// lost is the time within which an engine must report a dead peer. It is always shorter than peer_timeout, so that the
// report comes from the end of the control channel, not from the peer's silence.
var lost = min(testenv.Patient(5*time.Second), 15*time.Second)

// TestReload invalidates and loads the metadata of a live peer 20 times.
func TestReload(t *testing.T) {
	t.Parallel()
	p := pair(t)
	a, b := p.buffers(1 << 20)
	for i := range 20 {
		a.Fill(uint64(i))
		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: worker.Seq("r", i)})
		x.Do(limit)
		require.Equal(t, []nixlapi.Notif{{From: "alice", Msg: worker.Seq("r", i)}}, p.tgt.WaitNotifs(1, limit))
		b.Want(uint64(i))
		if i%2 == 0 { // a transfer may be released after the invalidation
			require.NoError(t, x.Release())
		}
		require.NoError(t, p.ini.Invalidate("bob"))
		require.False(t, p.ini.Knows("bob"))
		if i%2 != 0 {
			require.True(t, x.Post().Failed())
		}
		p.ini.Learn(p.tgt)
	}
}

// TestReloadInFlight invalidates the peer's metadata while a transfer is in flight.
func TestReloadInFlight(t *testing.T) {
	t.Parallel()
	p := pair(t)
	a, b := p.buffers(64 << 20)
	for range 5 {
		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
		require.False(t, x.Post().Failed())
		require.NoError(t, p.ini.Invalidate("bob"))
		p.ini.Learn(p.tgt)
		x.Wait(limit) // success or error
		if x.Release() != nil {
			require.NoError(t, x.Release())
		}
	}
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
	b.Want(seedA)
}

// TestRemovedReadWritesNothing: the agent reports the end of a READ by itself when its peer is removed. The READ writes nothing from then on,
// though the peer goes on sending.
func TestRemovedReadWritesNothing(t *testing.T) {
	t.Parallel()
	for range rounds(2, 5) {
		p := pair(t)
		a, b := p.buffers(64 << 20)
		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("keeps the session")})
		x.Do(limit)
		require.False(t, x.Post().Failed())
		p.tgt.Stop()
		inFlight := x.Status() == nixlapi.InProgress
		require.NoError(t, p.ini.Invalidate("bob"))
		require.NotEqual(t, nixlapi.InProgress, x.Status())
		a.Fill(seedC)
		p.tgt.Cont()
		untouched(t, map[*worker.Buf]uint64{a: seedC})
		release(t, x)
		t.Log("in flight:", inFlight)
	}
}

// TestConnectEarly: the initiator connects explicitly, twice, before the first transfer.
func TestConnectEarly(t *testing.T) {
	t.Parallel()
	p := pair(t)
	a, b := p.buffers(4096)
	require.NoError(t, p.ini.Connect("bob"))
	require.NoError(t, p.ini.Connect("bob"))
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
	a.Want(seedB)
}

// TestRestart: the target's process ends and another starts with the same agent name, four times.
func TestRestart(t *testing.T) {
	t.Parallel()
	ini := start(t, "alice")
	a := ini.Buffer(1<<20, seedA)
	for i := range 4 {
		tgt := start(t, "bob")
		tgt.Polling(true)
		b := tgt.Buffer(1<<20, seedB)
		ini.Learn(tgt)
		x := ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("x")})
		l := x.Loop(worker.LoopArgs{N: 20, Timeout: limit})
		require.Equal(t, 20, l.Done, l.Status)
		require.Len(t, tgt.WaitNotifs(20, limit), 20)
		b.Want(seedA)
		if i%2 == 0 {
			tgt.Kill()
		} else {
			require.NoError(t, tgt.Exit())
		}
		if i < 2 { // else only the application knows, and invalidates the metadata
			expectLost(t, ini, x)
		}
		forget(t, ini, "bob")
		require.NoError(t, x.Release())
	}
}

// toldLost says whether the agent got NIXL_ERR_REMOTE_DISCONNECT, for which the C API has no code. An agent up to NIXL
// 1.4 forgets the peer then, and one of NIXL 1.5 logs it.
func toldLost(a *worker.Agent) bool {
	return !a.Knows("bob") || strings.Contains(a.Output(), "was disconnected")
}

// expectLost posts until the agent has got NIXL_ERR_REMOTE_DISCONNECT.
func expectLost(t *testing.T, a *worker.Agent, x *worker.Xfer) {
	t.Helper()
	s := nixlapi.Success
	if !worker.Eventually(lost, func() bool {
		if s = x.Post(); s == nixlapi.InProgress {
			s = x.Wait(lost)
		}
		return s.Failed() && toldLost(a)
	}) {
		require.Failf(t, "no NIXL_ERR_REMOTE_DISCONNECT from a dead peer", "last status: %s\n%s", s, a.Output())
	}
}

// forget invalidates a peer's metadata if it is loaded.
func forget(t *testing.T, a *worker.Agent, peer string) {
	t.Helper()
	if a.Knows(peer) {
		require.NoError(t, a.Invalidate(peer))
	}
}

// TestKillInFlight kills the target's process while a transfer is in flight.
func TestKillInFlight(t *testing.T) {
	t.Parallel()
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		p := pair(t)
		a, b := p.buffers(64 << 20)
		x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("k")})
		loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
		require.NotEmpty(t, p.tgt.WaitNotifs(3, limit))
		p.tgt.Kill()
		began := time.Now()
		l := loop.Wait()
		require.True(t, l.Status.Failed(), "%d transfers, then %s", l.Done, l.Status)
		require.Less(t, time.Since(began), lost)
		expectLost(t, p.ini, x) // the status of the C API does not tell it
		if x.Release() != nil {
			require.NoError(t, x.Release())
		}
		require.NoError(t, p.ini.Exit())
	})
}

// TestStopped: the target's process is stopped for three seconds. The transfer then succeeds.
func TestStopped(t *testing.T) {
	t.Parallel()
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		p := pair(t)
		a, b := p.buffers(64 << 20)
		x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("s")})
		x.Do(limit)
		require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
		require.False(t, x.Post().Failed())
		p.tgt.Stop()
		s := x.Wait(3 * time.Second)
		p.tgt.Cont()
		if s == nixlapi.InProgress {
			s = x.Wait(limit)
		}
		require.Equal(t, nixlapi.Success, s)
		x.Do(limit)
		require.Len(t, p.tgt.WaitNotifs(2, limit), 2)
		la := worker.Span(0, a.Size)
		want(op, a, b, la, la)
	})
}
