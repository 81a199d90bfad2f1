package conform

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/test/drive"
)

func testAddresses(t *testing.T, a, b *side) {
	ep, err := a.rail.OpenEndpoint()
	require.NoError(t, err)
	require.ErrorIs(t, a.d.RMA(ep.Core(), drive.Write, 1, a.seg(b, 0, 0, 8)), syscall.ENOTCONN)
	secure(ep, true)
	for _, bad := range [][]byte{nil, {}, {1, 2, 3}, make([]byte, len(ep.Addr())), make([]byte, 1000)} {
		require.ErrorIs(t, ep.Connect(bad), provider.ErrBadAddress, "%x", bad)
	}
	require.NoError(t, ep.Connect(b.ep.Addr()))
	require.ErrorIs(t, ep.Connect(b.ep.Addr()), syscall.EISCONN)
	require.NoError(t, ep.Close())
	require.NoError(t, ep.Close(), "twice")
	require.ErrorIs(t, ep.Connect(b.ep.Addr()), provider.ErrEndpoint)
	if !a.rail.Caps().SharedEndpoint {
		require.NotEqual(t, a.ep.Addr(), ep.Addr())
	}
}

func testKeys(t *testing.T, a, b *side) {
	m, err := a.rail.Register(drive.Addr(a.mem), 4096, 33, option.PeersBoth)
	require.NoError(t, err)
	if !a.rail.Caps().ProviderKeys {
		require.Equal(t, uint64(33), m.Key(provider.Salt{}))
		_, err = a.rail.Register(drive.Addr(a.mem), 4096, 33, option.PeersBoth)
		require.ErrorIs(t, err, provider.ErrRegister)
		require.ErrorIs(t, err, syscall.ENOKEY)
	}
	switch {
	case a.traits.VirtAddr:
		require.Equal(t, drive.Addr(a.mem), m.Base())
	case !a.traits.Numbered:
		require.Zero(t, m.Base())
	}
	require.NoError(t, m.Close())
	require.NoError(t, m.Close(), "twice")
}

func testManyRegions(t *testing.T, a, b *side) {
	big, err := a.rail.Register(1<<40, 64<<30, 44, option.PeersBoth)
	n := 100_000
	if a.rail.Caps().PinsMemory && err != nil { // unmapped memory cannot be pinned; such devices have limits
		require.ErrorIs(t, err, provider.ErrRegister)
		n = 1000
	} else {
		require.NoError(t, err)
		require.NoError(t, big.Close())
	}
	regions := make([]provider.MR, n)
	for i := range regions {
		regions[i], err = a.rail.Register(drive.Addr(a.mem)+uint64(i), 64, 1000+uint64(i), option.PeersBoth)
		require.NoError(t, err)
	}
	for _, m := range regions {
		require.NoError(t, m.Close())
	}
}

// testRegisterUnderTraffic: another thread registers and deregisters regions, as an application does, while writes
// continue.
func testRegisterUnderTraffic(t *testing.T, a, b *side) {
	var stop atomic.Bool
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, s := range []*side{a, b} {
		wg.Go(func() {
			for key := uint64(5000); !stop.Load() && errs[i] == nil; key++ {
				m, err := s.rail.Register(drive.Addr(s.mem), 1<<20, key, option.PeersBoth)
				if err == nil {
					err = m.Close()
				}
				errs[i] = err
			}
		})
	}
	const n = 2000
	for id := uint64(1); id <= n; id++ {
		a.rma(b, drive.Write, id, a.seg(b, int(id), int(id), 4096))
	}
	ok := until(a, b, func() bool { return len(a.done) == n })
	stop.Store(true)
	wg.Wait()
	require.True(t, ok)
	require.Equal(t, []error{nil, nil}, errs)
	for id, c := range a.done {
		require.Zero(t, c.Err, "write %d", id)
	}
}

func testCloseBusy(t *testing.T, a, b *side) {
	require.ErrorIs(t, a.rail.Close(), syscall.EBUSY)
	a.rma(b, drive.Write, 1, a.seg(b, 0, 0, 8))
	require.True(t, until(a, b, a.has(1)), "the rail is still whole")
}
