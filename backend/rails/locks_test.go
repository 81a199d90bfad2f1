package rails

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Devices are opened with no lock of a choice held: that takes long, and tells the engine. A choice asks the roster with no device's lock held.
func TestLockOrder(t *testing.T) {
	devices, paths := cards(8)
	s := sharing(2)
	s.paths, s.wide = paths, true
	opened, chosen := 0, 0
	free := func(locks ...*sync.Mutex) {
		t.Helper()
		for i, l := range locks {
			require.True(t, l.TryLock(), "lock %d", i)
			l.Unlock()
		}
	}
	var demands []*sync.Mutex
	for i, d := range devices {
		l := &lateRail{dev: d, demand: &demand{}}
		l.up.Store(true)
		l.demand.open = func() error {
			opened++
			free(&s.choosing, &s.mu)
			return nil
		}
		demands = append(demands, &l.demand.mu)
		s.List = append(s.List, &Rail{Rail: l, Index: i, late: l})
	}
	s.Alone = func(choose func(map[string]float64)) {
		chosen++
		free(append(demands, &s.mu)...)
		choose(map[string]float64{})
	}
	s.out = func(i int) bool { return !s.List[i].may() }
	s.settle(0b110)
	s.common = 0b10
	places := []Place{{Node: 1}, {GPU: paths[6], Node: 1}}
	for _, at := range places {
		require.NotZero(t, s.For(at))
	}
	s.came.Store(1 << 5)
	s.Came()
	for _, i := range []int{1, 2, 5, 6, 7, 8} {
		s.List[i].Down.Store(true)
	}
	s.Widen() // to the others, for the process's own memory and for that of node 1
	s.List[3].late.demand.unfit.Store(true)
	s.replace(places[0])
	require.Greater(t, opened, 4)
	require.Greater(t, chosen, 6)
}
