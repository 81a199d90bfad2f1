package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/fabric"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// after is how long memory is watched behind a reported end.
const after = 2 * time.Second

// still watches buffers that hold the pattern of a seed each.
func still(t *testing.T, d time.Duration, seeds map[*worker.Buf]uint64) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		for b, seed := range seeds {
			require.EqualValues(t, -1, b.Diff(0, b.Size, seed, 0), "memory changed behind a reported end")
		}
	}
}

// imitated is a pair over an imitated fabric; breaches of its rules fail the test.
func imitated(t *testing.T, kind string, opts ...option) *pairOf {
	t.Helper()
	env, lib, breaches := testenv.Need(t), fabric.Build(t), filepath.Join(t.TempDir(), "breaches")
	set := append(fabric.Env(kind, 1, 1), "GORAIL_LIBFABRIC_PATH="+lib, fabric.EnvBreaches+"="+breaches)
	t.Cleanup(func() { require.Empty(t, fabric.Breaches(t, breaches)) })
	one := func(name string) *worker.Agent {
		return agent(worker.Start(t, worker.Options{Env: env, Setenv: set}), env, name, opts...)
	}
	p := &pairOf{env: env, ini: one("alice"), tgt: one("bob")}
	p.tgt.Polling(true)
	return p
}

// readAndStop posts a READ of both buffers in n requests, and stops the target in the middle of it. Those that were not over are given.
func (p *pairOf) readAndStop(t *testing.T, a, b *worker.Buf, n uint64) (left []*worker.Xfer) {
	t.Helper()
	for range 50 {
		var all []*worker.Xfer
		for i := range n {
			size := a.Size / n
			all = append(all, p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.Span(i*size, size), Remote: b.Span(i*size, size), Peer: "bob"}))
		}
		for _, x := range all {
			require.False(t, x.Post().Failed())
		}
		p.tgt.Stop()
		all[0].Wait(20 * time.Millisecond)
		for _, x := range all {
			if x.Status() == nixlapi.InProgress {
				left = append(left, x)
			} else {
				release(t, x)
			}
		}
		if len(left) > 0 {
			return left
		}
		p.tgt.Cont() // it was over before
	}
	require.Fail(t, "no READ was in flight when its target stopped")
	return nil
}

// TestReleasedReadWritesNothing: the target stands still in the middle of READs, which are released. From then on nothing of them is written,
// when the target goes on neither.
func TestReleasedReadWritesNothing(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, n := range []uint64{1, 64} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			p := pair(t)
			a, b := p.buffers(64 << 20)
			for i := range uint64(rounds(2, 5)) {
				for _, x := range p.readAndStop(t, a, b, n) {
					require.NoError(t, x.Release(), "an endpoint of one peer's can be closed")
				}
				a.Fill(100 + i)
				p.tgt.Cont()
				still(t, after, map[*worker.Buf]uint64{a: 100 + i, b: seedB})
				p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
				a.Want(seedB)
			}
		})
	}
}

// TestReleasedReadShared: where an endpoint serves all peers nothing can be closed. A release of what may still write is refused; the next one
// takes.
func TestReleasedReadShared(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, kind := range []string{"efa", "efa-direct", "cxi"} {
		t.Run(kind, func(t *testing.T) {
			p := imitated(t, kind)
			a, b := p.buffers(64 << 20)
			var refused []*worker.Xfer
			for _, x := range p.readAndStop(t, a, b, 1) {
				if x.Release() != nil {
					refused = append(refused, x)
				}
			}
			if len(refused) == 0 { // what was posted has ended without the target's help
				a.Fill(100)
			}
			p.tgt.Cont()
			for _, x := range refused {
				require.NoError(t, x.Release())
			}
			t.Log("refused", len(refused))
			a.Fill(100)
			still(t, after, map[*worker.Buf]uint64{a: 100, b: seedB})
			require.NoError(t, p.ini.Exit())
			require.NoError(t, p.tgt.Exit())
		})
	}
}
