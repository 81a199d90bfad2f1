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

// lost is how soon the death of a peer must be told. However slow the machine is, it is told by the end of its connection: less than the
// 20 s of silence that such tests have for peer_timeout.
var lost = min(testenv.Patient(5*time.Second), 15*time.Second)

// TestReload forgets and reloads a live peer 20 times.
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
		if i%2 == 0 { // a request may outlive the metadata that it was made of
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

// TestReloadInFlight forgets the peer while a transfer runs.
func TestReloadInFlight(t *testing.T) {
	t.Parallel()
	p := pair(t)
	a, b := p.buffers(64 << 20)
	for range 5 {
		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
		require.False(t, x.Post().Failed())
		require.NoError(t, p.ini.Invalidate("bob"))
		p.ini.Learn(p.tgt)
		x.Wait(limit) // it may end well or not, but it ends
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

// TestConnectEarly: an explicit connection before the first transfer.
func TestConnectEarly(t *testing.T) {
	t.Parallel()
	p := pair(t)
	a, b := p.buffers(4096)
	require.NoError(t, p.ini.Connect("bob"))
	require.NoError(t, p.ini.Connect("bob"))
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
	a.Want(seedB)
}

// TestRestart: the peer dies and comes back under its name, several times.
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
		if i < 2 { // told by the engine, or by the user
			expectLost(t, ini, x)
		}
		forget(t, ini, "bob")
		require.NoError(t, x.Release())
	}
}

// toldLost says whether the agent got NIXL_ERR_REMOTE_DISCONNECT. The C API has
// no code for it. The agent forgets the peer then (to 1.4) or logs it (1.5).
func toldLost(a *worker.Agent) bool {
	return !a.Knows("bob") || strings.Contains(a.Output(), "was disconnected")
}

// expectLost posts until the agent has learned that bob is gone.
func expectLost(t *testing.T, a *worker.Agent, x *worker.Xfer) {
	t.Helper()
	s := nixlapi.Success
	if !eventually(lost, func() bool {
		if s = x.Post(); s == nixlapi.InProgress {
			s = x.Wait(lost)
		}
		return s.Failed() && toldLost(a)
	}) {
		require.Failf(t, "no remote disconnect", "the peer is dead; last status: %s\n%s", s, a.Output())
	}
}

// forget lets a peer's name be loaded again.
func forget(t *testing.T, a *worker.Agent, peer string) {
	t.Helper()
	if a.Knows(peer) {
		require.NoError(t, a.Invalidate(peer))
	}
}

// TestKillIdle kills a peer with nothing in flight.
func TestKillIdle(t *testing.T) {
	t.Parallel()
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		p := pair(t)
		a, b := p.buffers(64 << 10)
		x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"})
		x.Do(limit)
		p.tgt.Kill()
		began := time.Now()
		expectLost(t, p.ini, x)
		t.Logf("told after %v", time.Since(began))
		require.NoError(t, x.Release())
		require.NoError(t, p.ini.Exit())
	})
}

// TestKillInFlight kills a peer while requests are on their way.
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
		expectLost(t, p.ini, x) // what Status says, the C API folds
		if x.Release() != nil {
			require.NoError(t, x.Release())
		}
		require.NoError(t, p.ini.Exit())
	})
}

// TestKillInitiator: a target outlives its initiator and serves the next one.
func TestKillInitiator(t *testing.T) {
	t.Parallel()
	p := pair(t)
	a, b := p.buffers(64 << 20)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("k")})
	x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
	require.NotEmpty(t, p.tgt.WaitNotifs(3, limit))
	p.ini.Kill()
	next := start(t, "alice")
	c := next.Buffer(64<<20, 77)
	next.Learn(p.tgt)
	next.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: c.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
	b.Want(77)
	require.NoError(t, next.Exit())
	require.NoError(t, p.tgt.Exit())
}

// TestStopped: a peer that stands still for three seconds is not a dead one.
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
