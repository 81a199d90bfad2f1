package verbs

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
	imitation "gorail/test/verbs"
)

// iwarp returns options over an imitated iWARP device. A rail may be closed while rdma_connect runs, so the test waits in the end until
// nothing is open.
func iwarp(t *testing.T, lib *imitation.Lib) Options {
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return len(lib.Open()) == 0 }, 10*time.Second, time.Millisecond)
	})
	lib.Set("iwarp", 1)
	return options(t, lib, true)
}

// post repeats a post until it is accepted.
func (s *side) post(f func() error) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		err := f()
		if err != nil {
			require.ErrorIs(s.t, err, syscall.EAGAIN)
			s.poll()
		}
		return err == nil
	}, 10*time.Second, 100*time.Microsecond)
}

// settled polls both sides until their connections are established.
func settled(t *testing.T, a, b *side, eps ...provider.Endpoint) {
	t.Helper()
	require.Eventually(t, func() bool {
		a.poll()
		b.poll()
		for _, ep := range eps {
			e := ep.(*iwEndpoint)
			e.m.mu.Lock()
			up := e.connected()
			e.m.mu.Unlock()
			if !up {
				return false
			}
		}
		return true
	}, 10*time.Second, 100*time.Microsecond)
}

// Requests posted on iWARP: each is signaled, and a READ of one byte follows WRITEs that must be proved.
func TestIWarpCounts(t *testing.T) {
	lib := imitation.Build(t)
	o := iwarp(t, lib)
	a, b := newSide(t, o), newSide(t, o)
	x, y := link(a, b)
	settled(t, a, b, x, y)
	require.Equal(t, []int{1, 1}, counts(lib, "sends", "recvs"), "the hello")
	names := []string{"writes", "reads", "sends", "signaled", "chains", "longest", "cqes"}
	for i, c := range []struct {
		op, n, size int
		want        []int
	}{
		{drive.WriteUnsignaled, 8, 8 << 10, []int{8, 0, 0, 8, 1, 8, 8}},
		{drive.Write, 8, 8 << 10, []int{8, 1, 0, 9, 1, 9, 9}},
		{drive.WriteFlushed, 1, 8 << 10, []int{1, 1, 0, 2, 1, 2, 2}},
		{drive.Write, 1, 0, []int{1, 1, 0, 2, 1, 2, 2}},
		{drive.Read, 3, 8 << 10, []int{0, 3, 0, 3, 1, 3, 3}},
	} {
		lib.Zero()
		id := uint64(i)
		a.post(func() error { return a.d.RMA(x.Core(), c.op, id, a.segs(b, c.n, c.size)...) })
		a.until(i + 1)
		require.Zero(t, a.done[id].Err)
		require.Equal(t, c.want, counts(lib, names...), "%d", i)
	}
}

// An unsignaled WRITE completes before its bytes are in place. A signaled or flushed one completes afterwards, and then
// all unsignaled ones before it are in place too.
func TestIWarpProof(t *testing.T) {
	lib := imitation.Build(t)
	lib.Set("late", 1)
	o := iwarp(t, lib)
	a, b := newSide(t, o), newSide(t, o)
	x, y := link(a, b)
	settled(t, a, b, x, y)
	id := uint64(0)
	for round := range 300 {
		for i := range 64 {
			a.mem[i] = byte(round + i)
		}
		for _, op := range []int{drive.WriteUnsignaled, []int{drive.Write, drive.WriteFlushed}[round%2]} {
			seg := a.segs(b, 1, 64)
			if op == drive.WriteUnsignaled {
				seg[0].Remote += 4096
			}
			a.post(func() error { return a.d.RMA(x.Core(), op, id, seg...) })
			id++
		}
		a.until(int(id))
		for i := range 64 { // overwritten at once
			a.mem[i] = 0xee
		}
		for i := range 64 {
			require.Equal(t, byte(round+i), b.mem[i], "round %d", round)
			require.Equal(t, byte(round+i), b.mem[4096+i], "round %d", round)
		}
	}
}

// A message without a receive ends the connection.
func TestIWarpNoReceive(t *testing.T) {
	lib := imitation.Build(t)
	o := iwarp(t, lib)
	a, b := newSide(t, o), newSide(t, o)
	x, y := link(a, b)
	settled(t, a, b, x, y)
	stall(t, a, x, 1)
	a.eventually(1)
	require.NotZero(t, a.done[1].Err)
}

// eventually polls until the operation has completed.
func (s *side) eventually(id uint64) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		s.poll()
		_, ok := s.done[id]
		return ok
	}, 10*time.Second, 100*time.Microsecond)
}
