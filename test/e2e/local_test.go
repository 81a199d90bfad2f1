package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// TestLoopback: an agent transfers bytes to itself and notifies itself.
func TestLoopback(t *testing.T) {
	t.Parallel()
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		a := start(t, "alice")
		src, dst := a.Buffer(5<<20, seedA), a.Buffer(5<<20, seedB)
		la, lb := scattered(7, 4096, 100, 1000, 1), scattered(9, 4096, 300, 1000, 2)
		x := a.Xfer(worker.XferSpec{Op: op, Local: src.At(la), Remote: dst.At(lb), Peer: "alice", Notif: []byte("me")})
		l := x.Loop(worker.LoopArgs{N: 50, Timeout: limit})
		require.Equal(t, 50, l.Done, "%s\n%s", l.Status, a.Output())
		require.NoError(t, a.GenNotif("alice", []byte("alone")))
		got := a.WaitNotifs(51, limit)
		require.Len(t, got, 51)
		require.Equal(t, nixlapi.Notif{From: "alice", Msg: []byte("me")}, got[0])
		want(op, src, dst, la, lb)
		require.NoError(t, x.Release())
	})
}

// TestTwoAgentsOneProcess: two agents of one process transfer in both directions.
func TestTwoAgentsOneProcess(t *testing.T) {
	t.Parallel()
	env := testenv.Need(t)
	w := process(t, worker.Options{Env: env})
	a, b := agent(w, env, "alice"), agent(w, env, "bob")
	ab, bb := a.Buffer(3<<20+5, seedA), b.Buffer(3<<20+5, seedB)
	a.Learn(b)
	b.Learn(a)
	a.Polling(true)
	b.Polling(true)
	x := a.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: ab.Span(1, 1<<20), Remote: bb.Span(3, 1<<20), Peer: "bob", Notif: []byte("w")})
	y := b.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: bb.Span(2<<20, 1<<20), Remote: ab.Span(2<<20, 1<<20), Peer: "alice", Notif: []byte("r")})
	for range 20 {
		x.Do(limit)
		y.Do(limit)
	}
	require.Len(t, b.WaitNotifs(20, limit), 20)
	require.Len(t, a.WaitNotifs(20, limit), 20)
	ab.Want(seedA)
	require.EqualValues(t, -1, bb.Diff(3, 1<<20, seedA, 1))
	require.EqualValues(t, -1, bb.Diff(2<<20, 1<<20, seedA, 2<<20))
	require.NoError(t, w.Exit())
}

// TestManyAgentsOneProcess: twenty agents of one process write to one target.
func TestManyAgentsOneProcess(t *testing.T) {
	t.Parallel()
	const n, block = 20, 100_000
	env := testenv.Need(t)
	tgt := start(t, "bob")
	tgt.Polling(true)
	b := tgt.Buffer(n*block, seedB)
	w := process(t, worker.Options{Env: env})
	for i := range uint64(n) {
		a := agent(w, env, string(worker.Seq("agent-", int(i))))
		buf := a.Buffer(block, 100+i)
		a.Learn(tgt)
		a.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: buf.All(), Remote: b.Span(i*block, block), Peer: "bob",
			Notif: []byte(a.Name)}).Do(limit)
	}
	require.Len(t, tgt.WaitNotifs(n, limit), n)
	for i := range uint64(n) {
		require.EqualValues(t, -1, b.Diff(i*block, block, 100+i, 0), i)
	}
}

// TestBothDirections: two processes write and read each other at the same time.
func TestBothDirections(t *testing.T) {
	t.Parallel()
	const n, size = 200, 1 << 20
	p := pair(t)
	a, b := p.buffers(2 * size)
	p.tgt.Learn(p.ini)
	p.tgt.Polling(false) // each loop drives its agent
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(0, size), Remote: b.Span(0, size), Peer: "bob", Notif: []byte("w")})
	y := p.tgt.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: b.Span(size, size), Remote: a.Span(size, size), Peer: "alice", Notif: []byte("r")})
	there := x.LoopAsync(worker.LoopArgs{N: n, Timeout: limit})
	back := y.LoopAsync(worker.LoopArgs{N: n, Timeout: limit})
	require.Equal(t, n, there.Wait().Done)
	require.Equal(t, n, back.Wait().Done)
	require.Len(t, p.tgt.WaitNotifs(n, limit), n)
	require.Len(t, p.ini.WaitNotifs(n, limit), n)
	b.Want(seedA)
}
