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

// after is how long a test watches memory after the end of a transfer.
const after = 2 * time.Second

// looks is how often a test looks at memory that must not change. Nothing else writes there, so a late write stays visible
// until the last look; more looks tell when it came.
func looks() int { return rounds(2, 8) }

// still requires the pattern of each buffer's seed in the buffer, for the time d.
func still(t *testing.T, d time.Duration, seeds map[*worker.Buf]uint64) {
	t.Helper()
	for range looks() {
		time.Sleep(d / time.Duration(looks()))
		for b, seed := range seeds {
			require.EqualValues(t, -1, b.Diff(0, b.Size, seed, 0), "memory changed after the end of the transfer")
		}
	}
}

// imitated makes a pair over an imitated fabric. A breach of the fabric's rules fails the test.
func imitated(t *testing.T, kind string, opts ...option) *pairOf {
	t.Helper()
	env, lib, breaches := testenv.Need(t), fabric.Build(t), filepath.Join(t.TempDir(), "breaches")
	set := append(fabric.Env(kind, 1, 1), "GORAIL_LIBFABRIC_PATH="+lib, fabric.EnvBreaches+"="+breaches)
	t.Cleanup(func() { require.Empty(t, fabric.Breaches(t, breaches)) })
	one := func(name string) *worker.Agent {
		return agent(process(t, worker.Options{Env: env, Setenv: set}), env, name, opts...)
	}
	p := &pairOf{env: env, ini: one("alice"), tgt: one("bob")}
	p.tgt.Polling(true)
	return p
}

// readAndStop posts READs of a part of the buffers each, n of them, and stops the target. It returns the READs that are
// then in progress, and releases the others.
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
		p.tgt.Cont() // all READs ended before the stop
	}
	require.Fail(t, "no READ was in flight when its target stopped")
	return nil
}

// TestReleasedReadWritesNothing: the target is stopped while READs are in flight, and the initiator releases the READs.
// They write nothing any more, even when the target goes on.
func TestReleasedReadWritesNothing(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, n := range []uint64{1, 64} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			p := pair(t)
			a, b := p.buffers(64 << 20)
			for i := range uint64(rounds(1, 5)) {
				for _, x := range p.readAndStop(t, a, b, n) {
					require.NoError(t, x.Release(), "the endpoints of one peer can be closed")
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
