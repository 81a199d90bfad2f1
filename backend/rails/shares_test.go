package rails

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// cards are n devices on two NUMA nodes, after the loopback device.
func cards(n int) (devices []provider.Device, paths []topo.PCIPath) {
	devices, paths = append(devices, provider.Device{Fabric: "net", Name: "lo", Loopback: true}), append(paths, nil)
	for i := range n {
		devices = append(devices, provider.Device{Fabric: "net", Name: fmt.Sprint("eth", i), NUMA: 2 * i / n})
		paths = append(paths, topo.PCIPath{fmt.Sprintf("pci0000:%02x", i), fmt.Sprintf("0000:%02x:00.0", i)})
	}
	return devices, paths
}

func sharing(most int) *Set {
	s := &Set{}
	s.opt.MaxRails = most
	return s
}

// Engines that do not see each other take different devices by their turns, and each device as often as others, wherever their memory lies.
func TestTurns(t *testing.T) {
	for _, tt := range []struct{ devices, most, ranks int }{{8, 2, 4}, {32, 8, 8}, {32, 8, 4}, {12, 5, 12}, {4, 1, 8}, {6, 4, 3}, {9, 8, 9}} {
		for _, node := range []int{-1, 0, 1} {
			devices, paths := cards(tt.devices)
			times := map[int]int{}
			for rank := range tt.ranks {
				s := sharing(tt.most)
				s.Turn = rank
				for _, i := range s.choose(Place{Node: node}, devices, paths)[1:] {
					require.True(t, node < 0 || devices[i].NUMA == node)
					times[i]++
				}
			}
			near := tt.devices
			if node >= 0 {
				near = tt.devices / 2
			}
			lowest, highest := 1<<30, 0
			for i, d := range devices {
				if !d.Loopback && (node < 0 || d.NUMA == node) {
					lowest, highest = min(lowest, times[i]), max(highest, times[i])
				}
			}
			require.LessOrEqual(t, highest-lowest, 1, "%+v of %d near node %d: %v", tt, near, node, times)
		}
	}
}

// What others use counts more than any turn.
func TestTurnsYield(t *testing.T) {
	devices, paths := cards(32)
	for turn := range 64 {
		used := map[string]float64{}
		for i := range devices {
			if k := keys(devices, paths)[i]; k != "" && i != 7 {
				used[k] = 1.0 / 32
			}
		}
		s := sharing(1)
		s.Turn = turn
		s.Alone = func(choose func(map[string]float64)) { choose(used) }
		require.Equal(t, []int{0, 7}, s.choose(Place{Node: -1}, devices, paths), "turn %d", turn)
	}
}

// Rails are chosen once for each place, and the weights of all places add up.
func TestChosenOnce(t *testing.T) {
	devices, paths := cards(8)
	s := sharing(2)
	s.paths = paths
	for i, d := range devices {
		s.List = append(s.List, &Rail{Rail: &lateRail{dev: d}, Index: i})
	}
	s.wide = true
	var alone sync.Mutex
	calls := 0
	s.Alone = func(choose func(map[string]float64)) {
		require.True(t, alone.TryLock(), "one choice at a time")
		defer alone.Unlock()
		calls++
		choose(map[string]float64{"net/0000:00:00.0": float64(calls)}) // others change
	}
	gpu := Place{GPU: paths[6], Node: 1}
	var all sync.WaitGroup
	masks := make([][2]uint64, 16)
	for i := range masks {
		all.Go(func() { masks[i] = [2]uint64{s.For(Place{Node: 0}), s.For(gpu)} })
	}
	all.Wait()
	require.Len(t, slices.Compact(masks), 1)
	require.Equal(t, 2, calls)
	weights, sum := s.Weights(), 0.0
	for _, w := range weights {
		sum += w
	}
	require.InDelta(t, 2, sum, 1e-9, "%v", weights)
	require.NotContains(t, weights, "net/0000:00:00.0", "others use it")
	require.NotContains(t, weights, "")
}

// A device has the same key in all engines of a host: its PCI address, whatever its interface is called there.
func TestKeys(t *testing.T) {
	devices, paths := cards(4)
	require.Equal(t, "", keys(devices, paths)[0])
	require.Equal(t, "net/0000:02:00.0", keys(devices, paths)[3])
	paths[4] = paths[3] // ports of one function
	here := fmt.Sprint("@", topo.NetNS())
	require.Equal(t, "net/eth2"+here, keys(devices, paths)[3])
	require.Equal(t, "net/eth3"+here, keys(devices, paths)[4])
	paths[2] = nil
	require.Equal(t, "net/eth1"+here, keys(devices, paths)[2])
	devices[2].Hardware = true
	require.Equal(t, "net/eth1", keys(devices, paths)[2], "it is the host's")
	require.Equal(t, []float64{0, 0.25, 0, 0.5, 0}, ordered(devices, paths, map[string]float64{"net/0000:00:00.0": 0.25, "net/eth2" + here: 0.5, "": 1, "net/other": 1}))
	require.Nil(t, ordered(devices, paths, nil))
}
