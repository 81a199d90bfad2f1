package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/worker"
)

// TestVRAMReload: a peer's metadata is removed and loaded again in every way that an application has, for every kind of memory, over each
// carrier of this host. Afterwards transfers in both directions move all bytes. The test of this name in backend/engine has verbs, too.
func TestVRAMReload(t *testing.T) {
	t.Parallel()
	const small, large = 512 << 10, cuda.Granule // a tcp rail carries up to 1 MiB
	host, vram, mixed := [][2]*worker.GPUMem{{nil, nil}}, [][2]*worker.GPUMem{{gpuMem(0), gpuMem(1)}}, [][2]*worker.GPUMem{{nil, gpuMem(1)}, {gpuMem(0), nil}}
	for _, c := range []struct {
		name, provider string
		size           uint64
		pairs          [][2]*worker.GPUMem // the memories here and there of each transfer
	}{
		{"sm host", "sm", large, host}, {"sm VRAM", "sm", large, vram}, {"sm mixed", "sm", large, mixed},
		{"sm staged VRAM", "sm", large, [][2]*worker.GPUMem{{gpuMem(0), {Device: 1, Kind: int(cuda.Pool)}}}},
		{"tcp host", "tcp", small, host}, {"tcp VRAM", "tcp", small, vram}, {"tcp mixed", "tcp", small, mixed},
		{"staged VRAM", "tcp", large, vram}, {"staged mixed", "tcp", large, mixed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := &reloaded{t: t, host: stagedHost(t, c.provider), size: c.size, pairs: c.pairs}
			r.begin()
			r.serve()
			r.load()
			r.whileDelivering(rounds(2, 20))
			r.afterwards()
			eachOp(t, r.visits)
			for range rounds(1, 5) {
				eachOp(t, r.inFlight)
			}
			r.anotherProcess(false)
			r.whileDelivering(1)
			r.anotherProcess(true)
			r.ini.Kill()
			r.begin()
			r.load()
			r.moves()
			require.NoError(t, r.ini.Close())
			require.NoError(t, r.tgt.Close())
			for i := range r.mine {
				r.mine[i].Free()
				r.theirs[i].Free()
			}
			gpuEmpty(t, r.ini, r.tgt)
		})
	}
}

// reloaded is a pair whose target is removed and loaded again.
type reloaded struct {
	t            *testing.T
	host         worker.Options
	ini, tgt     *worker.Agent
	size         uint64
	pairs        [][2]*worker.GPUMem
	mine, theirs []*worker.Buf
	md           []byte // the target's metadata: it may be stopped
}

// begin makes the initiator and its memory.
func (r *reloaded) begin() {
	r.t.Helper()
	r.ini, r.mine = agent(process(r.t, r.host), r.host.Env, "alice"), nil
	for _, m := range r.pairs {
		r.mine = append(r.mine, buffer(r.ini, r.size, seedA, m[0]))
	}
}

// serve makes the target, which polls, and its memory.
func (r *reloaded) serve() {
	r.t.Helper()
	r.tgt, r.theirs = agent(process(r.t, r.host), r.host.Env, "bob"), nil
	r.tgt.Polling(true)
	for _, m := range r.pairs {
		r.theirs = append(r.theirs, buffer(r.tgt, r.size, seedB, m[1]))
	}
	r.md = r.tgt.Metadata()
}

func (r *reloaded) load() {
	r.t.Helper()
	_, err := r.ini.Load(r.md)
	require.NoError(r.t, err)
}

// ended reports that a session has ended at the target since its output was forgotten. A test has more output than is kept.
func (r *reloaded) ended() bool { return strings.Contains(r.tgt.Output(), "peer's session ended") }

// ends requires that the target's session ends.
func (r *reloaded) ends() {
	r.t.Helper()
	require.True(r.t, worker.Eventually(limit, r.ended), "the session has not ended\n%s\n%s", r.ini.Output(), r.tgt.Output())
}

func (r *reloaded) request(op nixlapi.Op, i int, notif string) *worker.Xfer {
	r.t.Helper()
	return r.ini.Xfer(worker.XferSpec{Op: op, Local: r.mine[i].All(), Remote: r.theirs[i].All(), Peer: "bob", Notif: []byte(notif)})
}

// moves transfers all memory in both directions, with notifications.
func (r *reloaded) moves() {
	r.t.Helper()
	for i := range r.mine {
		for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
			r.mine[i].Fill(seedA)
			r.theirs[i].Fill(seedB)
			x := r.request(op, i, "whole")
			x.Do(limit)
			require.True(r.t, worker.Eventually(limit, func() bool { // transfers in flight at a removal may have notified before
				got := r.tgt.WaitNotifs(1, limit)
				return len(got) > 0 && string(got[len(got)-1].Msg) == "whole"
			}), r.tgt.Output())
			seed := uint64(seedA)
			if op == nixlapi.Read {
				seed = seedB
			}
			r.mine[i].Want(seed)
			r.theirs[i].Want(seed)
			require.NoError(r.t, x.Release())
		}
	}
}

// whileDelivering removes and loads the peer while it is stopped, so that the old session cannot end in between: it waits for the peer to
// confirm the notifications. The same session goes on.
func (r *reloaded) whileDelivering(times int) {
	r.t.Helper()
	for range times {
		r.tgt.Forget()
		r.moves()
		r.tgt.Stop()
		require.NoError(r.t, r.ini.Invalidate("bob"))
		r.load()
		r.tgt.Cont()
		r.moves()
		require.False(r.t, r.ended(), r.tgt.Output())
	}
}

// afterwards loads the peer when its old session has ended.
func (r *reloaded) afterwards() {
	r.t.Helper()
	r.tgt.Forget()
	require.NoError(r.t, r.ini.Invalidate("bob"))
	require.False(r.t, r.ini.Knows("bob"))
	r.ends()
	r.load()
	r.moves()
}

// visits loads and removes the peer around each transfer. Some sessions still deliver at the next load, others have ended.
func (r *reloaded) visits(t *testing.T, op nixlapi.Op) {
	n := rounds(20, 200)
	require.NoError(t, r.ini.Invalidate("bob"))
	for i := range r.mine {
		accepted, err := r.ini.Visit(worker.VisitArgs{N: n, Prefix: "v", Blob: r.md, Transfer: true, Op: op, Local: r.mine[i].All(), Remote: r.theirs[i].All(), Timeout: 5 * long})
		require.NoError(t, err, "after %d visits\n%s", accepted, r.ini.Output())
		got := r.tgt.WaitNotifs(n, limit)
		require.Len(t, got, n, "%s\n%s", r.ini.Output(), r.tgt.Output())
		for i, g := range got {
			require.Equal(t, string(worker.Seq("v", i)), string(g.Msg))
		}
	}
	r.load()
	r.moves()
}

// inFlight removes the peer during a transfer, which then has ended: a READ writes nothing more, though the peer goes on sending. It loads
// the peer at once, or when the session has ended.
func (r *reloaded) inFlight(t *testing.T, op nixlapi.Op) {
	for i := range r.mine {
		for _, atOnce := range []bool{true, false} {
			r.tgt.Forget()
			x := r.request(op, i, "may arrive")
			if atOnce {
				r.tgt.Stop()
			}
			require.False(t, x.Post().Failed())
			require.NoError(t, r.ini.Invalidate("bob"))
			require.NotEqual(t, nixlapi.InProgress, x.Status())
			r.mine[i].Fill(seedC)
			if atOnce {
				r.load()
				r.tgt.Cont()
			} else {
				r.ends()
			}
			if op == nixlapi.Read && atOnce {
				untouched(t, map[*worker.Buf]uint64{r.mine[i]: seedC})
			}
			r.mine[i].Want(seedC)
			release(t, x)
			if !atOnce {
				r.load()
			}
			r.moves()
		}
	}
}

// anotherProcess replaces the target by another process with an agent of the same name. kill: the old process is killed first.
func (r *reloaded) anotherProcess(kill bool) {
	r.t.Helper()
	old, theirs := r.tgt, r.theirs
	if kill {
		old.Kill()
	}
	r.serve()
	forget(r.t, r.ini, "bob")
	r.load()
	r.moves()
	if !kill {
		require.NoError(r.t, old.Close())
		for _, b := range theirs {
			b.Free()
		}
		gpuEmpty(r.t, old)
	}
}
