package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/worker"
)

// overlap is a pair in which each side has a narrow registration inside memory that a wider one has, too.
type overlap struct {
	*pairOf
	t            *testing.T
	a, b         *worker.Buf
	narrow, wide worker.Layout
	made         map[nixlapi.Op]*worker.Xfer // requests over the narrow registrations
	seed         uint64
}

func newOverlap(t *testing.T, p *pairOf, a, b *worker.Buf) *overlap {
	t.Helper()
	o := &overlap{pairOf: p, t: t, a: a, b: b, narrow: worker.Span(a.Size/4+100, a.Size/4+1), wide: worker.Span(0, a.Size), made: map[nixlapi.Op]*worker.Xfer{}, seed: 300}
	for _, side := range []struct {
		agent *worker.Agent
		buf   *worker.Buf
	}{{p.ini, a}, {p.tgt, b}} {
		require.NoError(t, side.agent.Register(side.buf.At(o.narrow)))
	}
	p.ini.Learn(p.tgt)
	for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
		o.made[op] = o.request(op)
		o.works(op, o.made[op])
	}
	return o
}

func (o *overlap) request(op nixlapi.Op) *worker.Xfer {
	o.t.Helper()
	return o.ini.Xfer(worker.XferSpec{Op: op, Local: o.a.At(o.narrow), Remote: o.b.At(o.narrow), Peer: "bob", Notif: []byte(op.String())})
}

// fill gives both buffers new contents.
func (o *overlap) fill() {
	o.t.Helper()
	o.seed += 2
	o.a.Fill(o.seed)
	o.b.Fill(o.seed + 1)
}

// arrived compares all bytes after a transfer, and takes its notification.
func (o *overlap) arrived(op nixlapi.Op) {
	o.t.Helper()
	require.Equal(o.t, []nixlapi.Notif{{From: "alice", Msg: []byte(op.String())}}, o.tgt.WaitNotifs(1, limit))
	if op == nixlapi.Write {
		o.b.WantBlocks(o.seed+1, o.narrow, o.seed, o.narrow)
		o.a.Want(o.seed)
	} else {
		o.a.WantBlocks(o.seed, o.narrow, o.seed+1, o.narrow)
		o.b.Want(o.seed + 1)
	}
}

func (o *overlap) works(op nixlapi.Op, x *worker.Xfer) {
	o.t.Helper()
	for range 2 { // the second post needs no Go
		o.fill()
		x.Do(limit)
		o.arrived(op)
	}
}

// all checks the requests of before and new ones.
func (o *overlap) all() {
	o.t.Helper()
	for op, x := range o.made {
		o.works(op, x)
		fresh := o.request(op)
		o.works(op, fresh)
		release(o.t, fresh)
	}
}

// run ends the narrow registrations while wider ones live, at one side after the other, and then the wider ones.
func (o *overlap) run() {
	o.t.Helper()
	require.NoError(o.t, o.tgt.Register(o.b.At(o.wide)))
	o.ini.Learn(o.tgt)
	require.NoError(o.t, o.tgt.Deregister(o.b.At(o.narrow)))
	o.all()
	o.ini.Learn(o.tgt)
	o.all()
	require.NoError(o.t, o.ini.Register(o.a.At(o.wide)))
	require.NoError(o.t, o.ini.Deregister(o.a.At(o.narrow)))
	o.all()

	// Two registrations cover the memory together, and no request of before has either.
	half := o.b.Size/2 - 77
	require.NoError(o.t, o.tgt.Register(o.b.Span(0, half), o.b.Span(half, o.b.Size-half)))
	o.ini.Learn(o.tgt)
	require.NoError(o.t, o.tgt.Deregister(o.b.At(o.wide)))
	o.all()

	// One of the two is gone: a part of the memory is registered nowhere.
	require.NoError(o.t, o.tgt.Deregister(o.b.Span(half, o.b.Size-half)))
	o.fill()
	for _, x := range o.made {
		s := x.Try(limit)
		require.True(o.t, s.Failed(), s)
	}
	says(o.t, o.ini.Worker, "transfer failed", "code=GR-1057")
	o.a.Want(o.seed)
	o.b.Want(o.seed + 1)
	require.True(o.t, o.ini.Knows("bob"), "the agent forgot a peer that lives")

	require.NoError(o.t, o.tgt.Register(o.b.At(o.wide)))
	o.all()
	for _, x := range o.made {
		release(o.t, x)
	}
}

// TestOverlap: a registration ends while a wider one of the same memory lives, at the peer and at our side, before and after posts. Requests
// that were made over it go on, and so do new ones, though the agent still chooses its descriptor.
func TestOverlap(t *testing.T) {
	t.Parallel()
	ours(t)
	for name, c := range map[string]struct {
		pair func(t *testing.T) *pairOf
		kind hostmem.Kind
		way  string
	}{
		"tcp":         {func(t *testing.T) *pairOf { return pair(t, params("provider", "tcp", "log", "info")) }, hostmem.Anon, wayTCP},
		"slices":      {func(t *testing.T) *pairOf { return pair(t, params("provider", "tcp", "log", "info", "mr_max", "1MiB")) }, hostmem.Anon, wayTCP},
		"direct":      {func(t *testing.T) *pairOf { return pair(t, params("provider", smProvider(), "log", "info")) }, hostmem.Anon, wayDirect},
		"pods ring":   {onNode, hostmem.Anon, wayRing},
		"pods mapped": {onNode, hostmem.Shared, wayRing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const size = 5 << 20
			p := c.pair(t)
			newOverlap(t, p, p.ini.Alloc(size, c.kind), p.tgt.Alloc(size, c.kind)).run()
			requireWay(t, p.ini, "bob", c.way)
		})
	}
}

// inFlight ends the narrow registration of one side while a large transfer over it is in flight, and a wider one lives. The transfer succeeds,
// with its bytes and one notification.
func (o *overlap) inFlight(agent *worker.Agent, buf *worker.Buf, rounds int) {
	o.t.Helper()
	require.NoError(o.t, agent.Register(buf.At(o.wide)))
	o.ini.Learn(o.tgt)
	for i := range rounds {
		for op, x := range o.made {
			if i > 0 { // while nothing is in flight all keys go, and the transfer asks for those of the narrow registration alone
				release(o.t, x)
				require.NoError(o.t, agent.Deregister(buf.At(o.narrow)))
				require.NoError(o.t, agent.Register(buf.At(o.narrow)))
				o.ini.Learn(o.tgt)
				x = o.request(op)
			}
			o.fill()
			s := x.Post()
			require.False(o.t, s.Failed(), s)
			require.NoError(o.t, agent.Deregister(buf.At(o.narrow)))
			if s == nixlapi.InProgress {
				s = x.Wait(limit)
			}
			require.Equal(o.t, nixlapi.Success, s, "%s", o.ini.Output())
			o.arrived(op)
			require.NoError(o.t, agent.Register(buf.At(o.narrow)))
			release(o.t, x)
			o.ini.Learn(o.tgt)
			o.made[op] = o.request(op)
		}
	}
	require.NoError(o.t, agent.Deregister(buf.At(o.wide)))
}

// TestOverlapInFlight: a registration ends while a large transfer over it is in flight, at the peer or at our side, and a wider one lives.
func TestOverlapInFlight(t *testing.T) {
	t.Parallel()
	ours(t)
	for name, provider := range map[string]string{"tcp": "tcp", "direct": smProvider()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pair(t, params("provider", provider, "log", "info"))
			size := uint64(rounds(16, 64)) << 20
			o := newOverlap(t, p, p.ini.Alloc(size, hostmem.Anon), p.tgt.Alloc(size, hostmem.Anon))
			o.inFlight(p.tgt, o.b, rounds(2, 3))
			o.inFlight(p.ini, o.a, rounds(2, 3))
		})
	}
}

// TestVRAMOverlapInFlight is TestOverlapInFlight for staged transfers: one side has memory of a GPU, which no rail of tcp moves at this size.
func TestVRAMOverlapInFlight(t *testing.T) {
	t.Parallel()
	ours(t)
	p := anewGPUs(t, "tcp")
	const size = 64 << 20
	o := newOverlap(t, p, p.ini.AllocGPU(size, *gpuMem(0)), p.tgt.AllocGPU(size, *gpuMem(1)))
	o.inFlight(p.tgt, o.b, 2)
	o.inFlight(p.ini, o.a, 2)
}

// TestVRAMOverlap is TestOverlap for GPU memory.
func TestVRAMOverlap(t *testing.T) {
	t.Parallel()
	ours(t)
	for name, c := range map[string]struct {
		provider    string
		here, there *worker.GPUMem
	}{
		"sm":          {"sm", gpuMem(0), gpuMem(1)},
		"sm, one GPU": {"sm", gpuMem(1), gpuMem(1)},
		"sm, host":    {"sm", nil, gpuMem(1)},
		"tcp":         {"tcp", gpuMem(0), gpuMem(1)},
		"tcp, host":   {"tcp", nil, gpuMem(1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := anewGPUs(t, c.provider)
			const size = 4 << 20
			alloc := func(w *worker.Worker, m *worker.GPUMem) *worker.Buf {
				if m == nil {
					return w.Alloc(size, hostmem.Anon)
				}
				return w.AllocGPU(size, *m)
			}
			newOverlap(t, p, alloc(p.ini.Worker, c.here), alloc(p.tgt.Worker, c.there)).run()
		})
	}
}
