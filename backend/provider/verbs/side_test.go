package verbs

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/test/drive"
	imitation "gorail/test/verbs"
)

// side is a rail over the imitated library, with memory and its completions.
type side struct {
	t    testing.TB
	rail provider.Rail
	d    drive.Rail
	mem  []byte
	mr   provider.MR
	done map[uint64]drive.Comp
}

func newSide(t testing.TB, o Options) *side {
	t.Helper()
	devs, err := New(o).Discover(context.Background(), provider.Filter{})
	require.NoError(t, err)
	return sideOn(t, o, devs[0])
}

func sideOn(t testing.TB, o Options, d provider.Device) *side {
	t.Helper()
	s := &side{t: t, mem: drive.Alloc(1 << 20), done: map[uint64]drive.Comp{}}
	var err error
	s.rail, err = New(o).Open(d)
	require.NoError(t, err)
	s.d = drive.New(s.rail.Core())
	s.mr, err = s.rail.Register(drive.Addr(s.mem), uint64(len(s.mem)), 0, option.PeersBoth)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.mr.Close())
		require.NoError(t, s.rail.Close())
	})
	return s
}

// pair returns two rails. Messages wait for a receive without limit.
func pair(t *testing.T, lib *imitation.Lib) (a, b *side) {
	o := options(t, lib, true)
	o.moreRNR = 1
	return newSide(t, o), newSide(t, o)
}

// link connects new endpoints of both sides. The end of the test closes them; closing them earlier is allowed.
func link(a, b *side) (x, y provider.Endpoint) {
	a.t.Helper()
	x, err := a.rail.OpenEndpoint()
	require.NoError(a.t, err)
	y, err = b.rail.OpenEndpoint()
	require.NoError(a.t, err)
	a.t.Cleanup(func() {
		require.NoError(a.t, x.Close())
		require.NoError(a.t, y.Close())
	})
	require.NoError(a.t, x.Connect(y.Addr()))
	require.NoError(a.t, y.Connect(x.Addr()))
	return x, y
}

// segs returns n segments of size bytes each, at the same offsets on both sides.
func (s *side) segs(peer *side, n, size int) (list []drive.Seg) {
	for i := range n {
		list = append(list, drive.Seg{Local: drive.Addr(s.mem) + uint64(i*size), Remote: peer.mr.Base() + uint64(i*size), Len: uint64(size),
			Desc: s.mr.Desc(), Key: peer.mr.Key(provider.Salt{})})
	}
	return list
}

// poll takes completions and checks that each operation completes once.
func (s *side) poll() int {
	s.t.Helper()
	comps, err := s.d.Poll(64)
	require.NoError(s.t, err)
	for _, c := range comps {
		_, twice := s.done[c.ID]
		require.False(s.t, twice, "%d completed twice", c.ID)
		s.done[c.ID] = c
	}
	return len(comps)
}

// until polls until n operations have completed.
func (s *side) until(n int) {
	s.t.Helper()
	for range 2_000_000 {
		if s.poll(); len(s.done) >= n {
			break
		}
	}
	require.Len(s.t, s.done, n)
}

// canDMABuf reports whether the rail can register dmabufs.
func canDMABuf(r provider.Rail) bool { return r.(*rail).dmabuf }

// post tries a post until the queue has room.
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
