package engine

import (
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/host"
	"gorail/backend/rails"
	"gorail/backend/topo"
	"gorail/test/fake"
)

// onShared is a harness with that many devices, all near to the process, of which each engine takes at most most. Engines meet in a folder.
func onShared(t testing.TB, devices, most int) (h *harness, folder string) {
	h, folder = onWide(t, devices, most, fake.SecuredCaps()), t.TempDir()
	h.links = h.links[:devices]
	h.params = append(h.params, "rail_share", "on", "local_dir", folder)
	return h, folder
}

// at are the rails for memory at a place.
func (a *agent) at(p rails.Place) (list []int) {
	for mask := a.rails.For(p); mask != 0; mask &= mask - 1 {
		list = append(list, bits.TrailingZeros64(mask))
	}
	return list
}

func (a *agent) home() []int { return a.at(rails.Place{Node: -1}) }

// shownIn is what the agents of a folder show to others.
func shownIn(t testing.TB, folder string) (texts []string, weights map[string]float64) {
	r, err := host.OpenRoster(folder, 0, core.CloseInForks)
	require.NoError(t, err)
	defer r.Close()
	list, err := r.Others()
	require.NoError(t, err)
	weights = map[string]float64{}
	for _, e := range list {
		texts = append(texts, e.Text)
		for device, w := range e.Weights {
			weights[device] += w
		}
	}
	return texts, weights
}

// Engines of a host take devices that no other has, and those of an engine that has ended.
func TestShare(t *testing.T) {
	t.Parallel()
	h, folder := onShared(t, 8, 2)
	var all []*agent
	taken := map[int]bool{}
	for i := range 4 {
		a, err := h.open(fmt.Sprint("agent", i))
		require.NoError(t, err)
		t.Cleanup(func() { _ = a.Close() })
		all = append(all, a)
		for _, i := range a.home() {
			require.False(t, taken[i], "rail %d of %v", i, a.home())
			taken[i] = true
		}
		require.Contains(t, a.home(), a.opened()[0])
	}
	require.Len(t, taken, 8)
	texts, weights := shownIn(t, folder)
	require.Len(t, texts, 4)
	require.Contains(t, texts, fmt.Sprintf("agent %q, process %d", "agent2", os.Getpid()))
	for i := range 8 {
		require.Equal(t, 0.5, weights[fmt.Sprint("fake/fake", i)], "%v", weights)
	}

	left := all[2].home()
	for i, w := range all[0].rails.Used() {
		require.Equal(t, !slices.Contains(all[0].home(), i), w > 0, "rail %d", i)
	}
	require.NoError(t, all[2].Close())
	for i, w := range all[0].rails.Used() { // it hears of the end
		require.Equal(t, !slices.Contains(append(all[0].home(), left...), i), w > 0, "rail %d", i)
	}
	require.Equal(t, left, h.agent("agent4").home())
	require.Contains(t, h.log.String(), "the agents of this host share its devices out")
}

// Memory of a GPU takes rails beside the other engines' when it is registered first. Its rails stay the same.
func TestShareGPU(t *testing.T) {
	t.Parallel()
	h, folder := onShared(t, 8, 2)
	a, b := h.agent("ann"), h.agent("bob")
	one, two := rails.Place{GPU: topo.PCIPath{"pci0000:00", "0000:00:01.0"}, Node: -1}, rails.Place{GPU: topo.PCIPath{"pci0000:00", "0000:00:02.0"}, Node: -1}
	first, second := a.at(one), b.at(two)
	for _, i := range first {
		require.NotContains(t, b.home(), i)
		require.NotContains(t, second, i)
	}
	for _, i := range second {
		require.NotContains(t, a.home(), i)
	}
	sum := 0.0
	_, weights := shownIn(t, folder)
	for _, w := range weights {
		sum += w
	}
	require.InDelta(t, 4, sum, 1e-9, "each of two engines has a home and a GPU")
	h.agent("eve")
	require.Equal(t, first, a.at(one))
	require.Equal(t, second, b.at(two))

	require.NoError(t, os.RemoveAll(folder)) // it chooses all the same, and says so
	require.Len(t, a.at(two), 2)
	require.Contains(t, h.log.String(), "the agents of this host are not seen")
	require.Nil(t, a.rails.Used())
}

// A machine that is not wide has nothing to share: nothing is opened.
func TestShareNarrow(t *testing.T) {
	t.Parallel()
	h, folder := onShared(t, 2, 2)
	require.Nil(t, h.agent("ann").sharing)
	list, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, list)
}

// Without a roster the process's number decides, and else a hash. With rail_share=off all take the same.
func TestShareUnseen(t *testing.T) {
	h, folder := onShared(t, 8, 2)
	gone := filepath.Join(folder, "gone")
	h.params = append(h.params, "local_dir", gone)
	for _, name := range ordinals {
		t.Setenv(name, "")
	}
	taken := map[int]bool{}
	for rank := range 8 {
		t.Setenv("SLURM_LOCALID", "7")
		t.Setenv("LOCAL_RANK", fmt.Sprint(rank))
		a, err := h.open("ann")
		require.NoError(t, err)
		for _, i := range a.home() {
			require.Equal(t, rank >= 4, taken[i], "rank %d has %v", rank, a.home())
		}
		for _, i := range a.home() {
			taken[i] = true
		}
		require.Nil(t, a.rails.Used())
		require.Contains(t, h.log.String(), fmt.Sprintf("by=LOCAL_RANK number=%d why=\"open %s: no such file or directory; ", rank, gone))
		require.Equal(t, []int{0, 1}, func() []int {
			off := h.agent("bob", "rail_share", "off")
			defer off.Close()
			return off.home()
		}())
		require.NoError(t, a.Close())
	}
	require.Len(t, taken, 8)
	require.Contains(t, h.log.String(), `why="rail_share=off"`)
	require.NoDirExists(t, gone)

	t.Setenv("LOCAL_RANK", "")
	t.Setenv("SLURM_LOCALID", "-1")
	seen := map[string]bool{}
	for i := range 64 { // four sets of devices: the names of 64 agents are not one of them all
		a, err := h.open(fmt.Sprint("agent", i))
		require.NoError(t, err)
		seen[fmt.Sprint(a.home())] = true
		require.NoError(t, a.Close())
		if len(seen) == 4 {
			break
		}
	}
	require.Len(t, seen, 4)
	require.Contains(t, h.log.String(), "a hash of the process id")
}

// Launchers name the number of a process differently.
func TestOrdinal(t *testing.T) {
	for _, tt := range []struct {
		env map[string]string
		by  string
		n   int
	}{
		{map[string]string{}, "", 0},
		{map[string]string{"LOCAL_RANK": "x", "SLURM_LOCALID": "-1"}, "", 0},
		{map[string]string{"LOCAL_RANK": "", "MPI_LOCALRANKID": "2"}, "MPI_LOCALRANKID", 2},
		{map[string]string{"SLURM_LOCALID": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, "OMPI_COMM_WORLD_LOCAL_RANK", 1},
		{map[string]string{"SLURM_LOCALID": "3", "LOCAL_RANK": "0"}, "LOCAL_RANK", 0},
		{map[string]string{"LOCAL_RANK": "99999999999"}, "", 0},
	} {
		by, n := ordinal(func(name string) string { return tt.env[name] })
		require.Equal(t, tt.by, by, "%v", tt.env)
		require.Equal(t, tt.n, n, "%v", tt.env)
	}
}

// What gorail devices --plan simulates is what engines take that start one after the other: for their own memory, and for that of their GPUs.
func TestShareSimulated(t *testing.T) {
	for _, c := range []struct{ devices, most, ranks int }{{32, 8, 8}, {12, 5, 4}, {9, 2, 6}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			h, _ := onShared(t, c.devices, c.most)
			for i := range h.links {
				h.links[i].Node = 1 + 2*i/c.devices
			}
			var agents []*agent
			var ranks []rails.Rank
			for n := range c.ranks {
				t.Setenv("LOCAL_RANK", fmt.Sprint(n))
				a := h.agent(fmt.Sprint("rank", n))
				gpu := rails.Place{GPU: topo.PCIPath{"pci0000:00", fmt.Sprintf("0000:00:%02x.0", 1+n)}, Node: n % 2}
				agents, ranks = append(agents, a), append(ranks, rails.Rank{Seat: a.rails.Seat(), Memory: []rails.Place{gpu, {Node: 1}}})
			}
			for n, a := range agents {
				for _, at := range ranks[n].Memory {
					a.at(at)
				}
			}
			sim := rails.Simulate(agents[0].opt, agents[0].rails.Devices(), make([]topo.PCIPath, c.devices), ranks)
			for n, a := range agents {
				for _, at := range append(ranks[n].Memory, rails.Place{Node: -1}) {
					require.Equal(t, a.at(at), sim.Rails(n, at), "rank %d, %v", n, at)
				}
			}
		})
	}
}
