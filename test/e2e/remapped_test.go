package e2e

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/skip"
	"gorail/test/worker"
)

const seedD = seedC + 1

// remap is a way to map other memory at a registered address.
type remap struct {
	name string
	as   worker.GPUMem
	to   worker.RemapArgs
	fail bool // transfers may fail: the memory is not what the descriptor says, or may not be written
}

func remaps(gpu int) []remap {
	one, four := worker.GPUMem{Device: gpu, Handles: 1}, worker.GPUMem{Device: gpu, Handles: 4}
	return []remap{
		{name: "same size", as: one, to: worker.RemapArgs{Handles: 1}},
		{name: "smaller handles", as: one, to: worker.RemapArgs{Handles: 4}},
		{name: "larger handles", as: four, to: worker.RemapArgs{Handles: 1}},
		{name: "cudaMalloc", as: device(gpu), to: worker.RemapArgs{Handles: 1}},
		{name: "read-only", as: one, to: worker.RemapArgs{Handles: 2, ReadOnly: true}, fail: true},
		{name: "another GPU", as: one, to: worker.RemapArgs{Handles: 1, Device: 2 - gpu}, fail: true},
	}
}

// remapped is a pair, one of whose buffers is mapped anew. The bytes are there after a transfer that has ended well, or it has not.
type remapped struct {
	t        *testing.T
	p        *pairOf
	op       nixlapi.Op
	x        *worker.Xfer
	src, dst *worker.Buf
	moved    *worker.Buf // one of them
	fail     bool
}

func startRemapped(t *testing.T, r remap, op nixlapi.Op, atTarget bool) *remapped {
	t.Helper()
	const size = 16 << 20
	p := gpuPair(t)
	as := [2]worker.GPUMem{device(0), device(1)}
	if atTarget {
		as[1] = r.as
	} else {
		as[0] = r.as
	}
	a, b := p.ini.GPUBuffer(size, seedA, as[0]), p.tgt.GPUBuffer(size, seedB, as[1])
	p.ini.Learn(p.tgt)
	m := &remapped{t: t, p: p, op: op, src: a, dst: b, moved: a, fail: r.fail}
	if op == nixlapi.Read {
		m.src, m.dst = b, a
	}
	if atTarget {
		m.moved = b
	}
	m.x = p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"})
	return m
}

// round fills both buffers, transfers, and compares.
func (m *remapped) round(mayFail bool) nixlapi.Status {
	m.t.Helper()
	m.src.Fill(seedC)
	m.dst.Fill(seedD)
	s := m.x.Try(limit)
	if s == nixlapi.Success {
		m.dst.Want(seedC)
		return s
	}
	require.True(m.t, mayFail, "%v\n%s\n%s", s, m.p.ini.Output(), m.p.tgt.Output())
	return s
}

// direct repeats transfers until one goes by a copy of the initiator's GPU again.
func (m *remapped) direct() {
	m.t.Helper()
	require.True(m.t, worker.Eventually(limit, func() bool {
		before := m.targetWorked()
		m.round(false)
		return m.targetWorked() == before
	}), "transfers stay staged")
}

// targetWorked is how much the target's GPU has done: it copies for staged transfers alone. The real driver does not count.
func (m *remapped) targetWorked() int {
	if os.Getenv("GORAIL_TEST_CUDA") != "" {
		return 0
	}
	return m.p.tgt.GPUCount("launches") + m.p.tgt.GPUCount("copies")
}

func (m *remapped) end(mistake bool) {
	m.t.Helper()
	require.NoError(m.t, m.x.Release())
	require.NoError(m.t, m.p.ini.Close())
	require.NoError(m.t, m.p.tgt.Close())
	m.src.Free()
	m.dst.Free()
	for _, w := range []*worker.Agent{m.p.ini, m.p.tgt} {
		open, wrong := w.GPUState()
		if !mistake { // cudaFree of memory that peers have mapped is the application's mistake
			require.Empty(m.t, wrong)
		}
		require.Empty(m.t, open)
	}
}

// TestRemapped: the owner of GPU memory maps other memory at a registered address. A transfer that is posted afterwards moves the bytes
// that are there now, or fails and says why. The next ones are direct again. Nobody tells the plugin.
func TestRemapped(t *testing.T) {
	t.Parallel()
	for _, atTarget := range []bool{true, false} {
		side, gpu := "initiator", 0
		if atTarget {
			side, gpu = "target", 1
		}
		for _, r := range remaps(gpu) {
			for _, first := range []bool{true, false} {
				when := "between"
				if first {
					when = "before the first"
				}
				if testing.Short() && first && !atTarget {
					continue
				}
				if r.name == "read-only" && os.Getenv("GORAIL_TEST_CUDA") != "" {
					continue // the real driver refuses what the application writes there between transfers
				}
				t.Run(fmt.Sprintf("%s/%s/%s", side, r.name, when), func(t *testing.T) {
					t.Parallel()
					eachOp(t, func(t *testing.T, op nixlapi.Op) {
						m := startRemapped(t, r, op, atTarget)
						if !first {
							m.round(false)
							m.round(false)
						}
						m.moved.Unmap()
						m.moved.RemapAs(r.to)
						m.round(r.fail)
						m.round(r.fail)
						if !r.fail {
							m.direct()
						}
						m.end(r.as.Handles == 0)
					})
				})
			}
		}
	}
}

// TestRemappedAsleep: while nothing is mapped at a registered address, transfers fail, and the log says why. The processes keep their use
// of the GPU, and other memory of the agent moves. When memory is mapped there again, transfers go on.
func TestRemappedAsleep(t *testing.T) {
	t.Parallel()
	for _, atTarget := range []bool{true, false} {
		for kind, as := range map[string]worker.GPUMem{"VMM": {Device: 1, Handles: 2}, "cudaMalloc": device(1)} {
			t.Run(fmt.Sprintf("target=%v/%s", atTarget, kind), func(t *testing.T) {
				t.Parallel()
				eachOp(t, func(t *testing.T, op nixlapi.Op) {
					if !atTarget {
						as.Device = 0
					}
					m := startRemapped(t, remap{as: as}, op, atTarget)
					other := m.p.tgt.GPUBuffer(1<<20, seedB, device(1))
					m.p.ini.Learn(m.p.tgt)
					beside := m.p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: m.mine().Span(0, 1<<20), Remote: other.All(), Peer: "bob"})
					m.round(false)
					m.moved.Unmap()
					for range 3 {
						s := m.x.Try(limit)
						require.Equal(t, nixlapi.ErrBackend, s, "%s\n%s", m.p.ini.Output(), m.p.tgt.Output())
					}
					m.p.tgt.Stats() // it lives
					says(t, m.p.ini.Worker, "ERROR", "nothing is mapped there now", "GR-1069")
					if atTarget {
						beside.Do(limit)
						m.mine().Span(0, 1<<20)
					}
					if err := m.moved.TryRemap(2); err != nil && as.Handles == 0 {
						t.Logf("what was freed is memory of ours now: %v", err)
						return
					} else {
						require.NoError(t, err)
					}
					m.round(false)
					m.direct()
					require.NoError(t, beside.Release())
					require.NoError(t, m.p.tgt.Deregister(other.All()))
					other.Free()
					m.end(as.Handles == 0)
				})
			})
		}
	}
}

func (m *remapped) mine() *worker.Buf {
	if m.op == nixlapi.Read {
		return m.dst
	}
	return m.src
}

// TestPodsRemapped: a peer in another pod has mapped a shared memory file. Its owner maps another file over it, without a word, again and
// again. Transfers move the bytes that are there.
func TestPodsRemapped(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	n := newNode(t)
	a := n.pod()
	b := n.pod()
	skip.OrFail(t, errors.Join(a.Possible(), b.Possible()))
	alice, bob := a.startWith(nil, "alice"), b.startWith(nil, "bob")
	mine, theirs := alice.BufferOf(hostmem.Shared, size, seedA), bob.BufferOf(hostmem.Shared, size, seedB)
	alice.Learn(bob)
	requireMapped := func() {
		t.Helper()
		require.True(t, worker.Eventually(limit, func() bool {
			x := alice.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: mine.All(), Remote: theirs.All(), Peer: "bob"})
			x.Do(limit)
			require.NoError(t, x.Release())
			return sharedMappings(t, alice.Worker) == 2
		}), "alice does not map bob's file")
	}
	for i := range 4 {
		requireMapped()
		for _, op := range []nixlapi.Op{nixlapi.Read, nixlapi.Write} {
			x := alice.Xfer(worker.XferSpec{Op: op, Local: mine.All(), Remote: theirs.All(), Peer: "bob"})
			mine.Fill(seedA)
			theirs.Renew()
			theirs.Fill(seedC + uint64(i))
			x.Do(limit)
			if op == nixlapi.Read {
				mine.Want(seedC + uint64(i))
			} else {
				theirs.Want(seedA)
			}
			require.NoError(t, x.Release())
		}
	}
}
