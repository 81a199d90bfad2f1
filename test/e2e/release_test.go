package e2e

import (
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/fabric"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// quiet is how long a test watches memory after a release. A later change goes unnoticed.
const quiet = 300 * time.Millisecond

// release releases a transfer that may be in flight. The agent may refuse the first time.
func release(t *testing.T, x *worker.Xfer) {
	t.Helper()
	if x.Release() != nil {
		require.NoError(t, x.Release())
	}
}

// untouched requires the pattern of each buffer's seed in the buffer, for the time quiet.
func untouched(t *testing.T, seeds map[*worker.Buf]uint64) {
	t.Helper()
	still(t, quiet, seeds)
}

// TestDeregisterInFlight: the target deregisters memory during a transfer. The transfer changes the memory no more after
// that, and transfers to other memory work.
func TestDeregisterInFlight(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	p := pair(t)
	a, b := p.ini.Buffer(size, seedA), p.tgt.Buffer(size, seedB)
	keep := p.tgt.Buffer(1<<20, seedB)
	p.ini.Learn(p.tgt)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("d")})
	loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
	require.NotEmpty(t, p.tgt.WaitNotifs(2, limit))
	require.NoError(t, p.tgt.Deregister(b.All()))
	b.Fill(77)
	untouched(t, map[*worker.Buf]uint64{b: 77})
	b.Free() // so that a late access kills the target's process
	l := loop.Wait()
	require.True(t, l.Status.Failed(), "%s after %d transfers", l.Status, l.Done)
	require.Less(t, l.Wall, limit)
	require.True(t, p.ini.Knows("bob"), "the agent forgot the peer for one deregistered region")
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(0, 1<<20), Remote: keep.All(), Peer: "bob"}).Do(limit)
	keep.Want(seedA)
}

// TestCloseInFlight destroys the initiator's or the target's agent during a transfer.
func TestCloseInFlight(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"initiator", "target"} {
		t.Run(who, func(t *testing.T) {
			p := pair(t)
			a, b := p.buffers(64 << 20)
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("c")})
			x.Do(limit)
			require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
			require.False(t, x.Post().Failed())
			if who == "initiator" {
				require.NoError(t, p.ini.Close())
			} else {
				require.NoError(t, p.tgt.Close())
				require.NotEqual(t, nixlapi.InProgress, x.Wait(limit))
				release(t, x)
			}
			exit(t, p.ini, p.tgt)
		})
	}
}

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

var seed = maphash.MakeSeed()

// sum reads a buffer from its process, which may be stopped, and returns its checksum.
func sum(t *testing.T, a *worker.Agent, b *worker.Buf) uint64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", a.Pid()))
	require.NoError(t, err)
	defer f.Close()
	var h maphash.Hash
	h.SetSeed(seed)
	_, err = io.Copy(&h, io.NewSectionReader(f, int64(b.Addr), int64(b.Size)))
	require.NoError(t, err)
	return h.Sum64()
}

// ending is a transfer that a cause ends with an error, and the memory of both sides.
type ending struct {
	*pairOf
	t    *testing.T
	a, b *worker.Buf
	op   nixlapi.Op
	x    *worker.Xfer
}

// flight posts and stops the target, until a transfer is in progress then.
func (h *ending) flight() {
	h.t.Helper()
	for range 50 {
		require.False(h.t, h.x.Post().Failed())
		h.tgt.Stop()
		if h.x.Wait(10*time.Millisecond) == nixlapi.InProgress {
			return
		}
		h.tgt.Cont()
	}
	require.Fail(h.t, "no transfer was in progress when its target stopped")
}

// errorsOf are the causes of a transfer's error.
var errorsOf = map[string]func(h *ending){
	"deadline": func(h *ending) {
		h.flight()
		h.x.Wait(1500 * time.Millisecond) // xfer_timeout and cancel_timeout have passed
	},
	"own deregistration": func(h *ending) {
		h.flight()
		require.NoError(h.t, h.ini.Deregister(h.a.All()))
	},
	"peer's deregistration": func(h *ending) {
		require.False(h.t, h.x.Post().Failed())
		require.NoError(h.t, h.tgt.Deregister(h.b.All()))
	},
	"peer leaves": func(h *ending) {
		require.False(h.t, h.x.Post().Failed())
		require.NoError(h.t, h.tgt.Close())
	},
	"peer killed": func(h *ending) {
		require.False(h.t, h.x.Post().Failed())
		h.tgt.Kill()
	},
}

// TestErrorMeansQuiet: when a transfer has ended with an error, it changes no memory of either side any more.
func TestErrorMeansQuiet(t *testing.T) {
	t.Parallel()
	ours(t)
	limits := []string{"xfer_timeout", "500ms", "cancel_timeout", "300ms", "peer_timeout", "20s"}
	set := params(limits...)
	makers := map[string]func(t *testing.T) *pairOf{
		"tcp":        func(t *testing.T) *pairOf { return pair(t, set) },
		"memory":     func(t *testing.T) *pairOf { return pair(t, params(append(limits, "provider", "sm")...)) },
		"efa":        func(t *testing.T) *pairOf { return imitated(t, "efa", set) },
		"efa-direct": func(t *testing.T) *pairOf { return imitated(t, "efa-direct", set) },
		"cxi":        func(t *testing.T) *pairOf { return imitated(t, "cxi", set) },
	}
	for rails, make := range makers {
		if testing.Short() && rails != "tcp" && rails != "memory" {
			continue
		}
		for name, cause := range errorsOf {
			shared := rails != "tcp" && rails != "memory"
			if name == "deadline" && rails == "memory" || name == "own deregistration" && rails != "tcp" {
				continue // shared memory needs no running target: the transfer does not end with an error
			}
			if shared && name != "deadline" && name != "peer leaves" {
				continue // the same code as on tcp
			}
			t.Run(rails+" "+name, func(t *testing.T) {
				t.Parallel()
				eachOp(t, func(t *testing.T, op nixlapi.Op) {
					h := &ending{pairOf: make(t), t: t, op: op}
					h.a, h.b = h.buffers(uint64(rounds(32, 64)) << 20)
					h.x = h.ini.Xfer(worker.XferSpec{Op: op, Local: h.a.All(), Remote: h.b.All(), Peer: "bob", Notif: []byte("n")})
					h.x.Do(limit)
					h.a.Fill(50)
					cause(h)
					early := h.x.Status()
					gone := name == "peer killed"
					sums := func() [2]uint64 {
						if gone {
							return [2]uint64{sum(t, h.ini, h.a)}
						}
						return [2]uint64{sum(t, h.ini, h.a), sum(t, h.tgt, h.b)}
					}
					var was [2]uint64
					if early != nixlapi.InProgress {
						was = sums()
					}
					h.tgt.Cont()
					s := early
					if s == nixlapi.InProgress {
						s = h.x.Wait(limit)
						was = sums()
					}
					if s == nixlapi.Success {
						return // the transfer was faster than the cause
					}
					require.True(t, s.Failed(), s)
					for range looks() {
						time.Sleep(after / time.Duration(looks()))
						require.Equal(t, was, sums(), "memory changed after %s (shared endpoint: %v)", s, shared)
					}
				})
			})
		}
	}
}

// TestDeregisteredBehindPost: the target deregisters its memory right after the post of a WRITE. If the post
// passes the whole WRITE to the provider, the WRITE succeeds. The post does so up to the least window, unless the progress
// thread has the rail just then: that is rare, but a starved host keeps that thread from letting go.
func TestDeregisteredBehindPost(t *testing.T) {
	t.Parallel()
	ours(t)
	times := rounds(15, 80)
	for _, size := range []uint64{4 << 10, 256 << 10, 8 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			n := map[nixlapi.Status]int{}
			p := pair(t)
			for i := range uint64(times) {
				a, b := p.ini.Buffer(size, seedA), p.tgt.Buffer(size, seedB)
				p.ini.Learn(p.tgt)
				x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
				x.Do(limit)
				a.Fill(i)
				require.False(t, x.Post().Failed())
				require.NoError(t, p.tgt.Deregister(b.All()))
				s := x.Wait(limit)
				n[s]++
				if s == nixlapi.Success {
					b.Want(i)
				} else {
					require.True(t, s.Failed(), s)
					require.False(t, toldLost(p.ini), p.ini.Output())
				}
				require.NoError(t, x.Release())
				require.NoError(t, p.ini.Deregister(a.All())) // the next buffer may be at the same address
				a.Free()
				b.Free()
			}
			t.Log(n)
			require.True(t, size > 256<<10 || n[nixlapi.Success] >= times-times/4, n)
		})
	}
}

// TestLeavesBehindPost: the target's agent is destroyed right after the post. The transfer succeeds, or the initiator's
// agent learns that the peer is gone.
func TestLeavesBehindPost(t *testing.T) {
	t.Parallel()
	ours(t)
	n := map[nixlapi.Status]int{}
	for i := range uint64(10) {
		p := pair(t)
		a, b := p.buffers(4 << 20)
		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
		x.Do(limit)
		a.Fill(i)
		post := x.LoopAsync(worker.LoopArgs{N: 1, Timeout: limit})
		require.NoError(t, p.tgt.Close())
		s := post.Wait().Status
		n[s]++
		if s == nixlapi.Success {
			require.EqualValues(t, -1, b.Diff(0, b.Size, i, 0))
		} else {
			require.True(t, s.Failed(), s)
			require.NotContains(t, p.ini.Output(), "NIXL_ERR_BACKEND") // the C API has one code for both; the agent's log has the name
			expectLost(t, p.ini, x)
		}
		exit(t, p.ini, p.tgt)
	}
	t.Log(n)
}
