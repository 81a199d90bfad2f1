package rails_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/topo"
	"gorail/test/topotest"
)

// box is a machine of a fixture: the devices that an engine knows, and the places of memory.
type box struct {
	devices []provider.Device
	paths   []topo.PCIPath
	gpus    []rails.Place
}

// gpusOf are the addresses of GPUs in each fixture, in the order of CUDA (PCI).
var gpusOf = map[string]string{
	"p5-48xlarge":        "0000:53:00.0 0000:64:00.0 0000:75:00.0 0000:86:00.0 0000:97:00.0 0000:a8:00.0 0000:b9:00.0 0000:ca:00.0",
	"p5en-48xlarge":      "0000:5f:00.0 0000:60:00.0 0000:81:00.0 0000:82:00.0 0000:a3:00.0 0000:a4:00.0 0000:c5:00.0 0000:c6:00.0",
	"p6-b200-48xlarge":   "0000:5f:00.0 0000:60:00.0 0000:81:00.0 0000:82:00.0 0000:a3:00.0 0000:a4:00.0 0000:c5:00.0 0000:c6:00.0",
	"p6e-gb200-36xlarge": "0008:01:00.0 0009:01:00.0 0018:01:00.0 0019:01:00.0",
	"p6e-gb300r":         "0008:01:00.0 0009:01:00.0 0018:01:00.0 0019:01:00.0",
	"dgx-h100":           "0000:1b:00.0 0000:43:00.0 0000:52:00.0 0000:61:00.0 0000:9d:00.0 0000:c3:00.0 0000:d1:00.0 0000:df:00.0",
	"dgx-b200":           "0000:1b:00.0 0000:43:00.0 0000:52:00.0 0000:61:00.0 0000:9d:00.0 0000:c3:00.0 0000:d1:00.0 0000:df:00.0",
	"gb300":              "0008:06:00.0 0009:06:00.0 0018:06:00.0 0019:06:00.0",
	"frontier":           "0000:c1:00.0 0000:c6:00.0 0000:c9:00.0 0000:ce:00.0 0000:d1:00.0 0000:d6:00.0 0000:d9:00.0 0000:de:00.0",
	"alps":               "0009:01:00.0 0019:01:00.0 0029:01:00.0 0039:01:00.0",
	"dgx-spark":          "000f:01:00.0",
	"azure-nd-h100":      "0001:00:00.0 0002:00:00.0 0003:00:00.0 0008:00:00.0 0009:00:00.0 000a:00:00.0 000b:00:00.0 000c:00:00.0",
}

// open is a fixture with all its RDMA devices, behind shared memory.
func open(t testing.TB, name string, nested topo.Nested) box {
	t.Helper()
	sys := topotest.FS(t, "../topo/testdata/"+name+".txt")
	m := topo.Read(sys)
	m.Nest(nested)
	var found []provider.Device
	for fabric, names := range topo.Hardware(sys) {
		for _, n := range names {
			found = append(found, provider.Device{Provider: fabric, Fabric: fabric, Name: n, Subnet: fabric, Hardware: true, NUMA: -1})
		}
	}
	found = append(found, provider.Device{Provider: "shm", Fabric: "sm", Name: "memory", Loopback: true, Host: true, NUMA: -1})
	b := box{}
	b.devices, _ = rails.Choose(found, rails.FactsOf(m), rails.ChooseOptions{MaxRails: rails.MostDevices, Slots: 64})
	b.paths = rails.Paths(b.devices, m)
	for _, address := range strings.Fields(gpusOf[name]) {
		at := m.Path(address)
		require.NotNil(t, at, address)
		b.gpus = append(b.gpus, rails.Place{GPU: at, Node: topo.Number(sys, "bus/pci/devices/"+address+"/numa_node", -1)})
	}
	return b
}

func (b box) names(chosen []int) string {
	var names []string
	for _, i := range chosen {
		if !b.devices[i].Host {
			names = append(names, b.devices[i].Name)
		}
	}
	return strings.Join(names, " ")
}

func host(node int) rails.Place { return rails.Place{Node: node} }

// The rails of some memory on each machine. "gpu N", or "node N".
func TestNearestOnMachines(t *testing.T) {
	azure, err := topo.ReadNCCLFile("../topo/testdata/azure-nd-h100.xml")
	require.NoError(t, err)
	for _, c := range []struct {
		name   string
		nested topo.Nested
		most   int
		place  string
		want   string
		why    string
	}{
		{"p5-48xlarge", nil, 8, "gpu 0", "rdmap79s0 rdmap80s0 rdmap81s0 rdmap82s0", "same switch as the GPU"},
		{"p5-48xlarge", nil, 8, "gpu 7", "rdmap198s0 rdmap199s0 rdmap200s0 rdmap201s0", "same switch as the GPU"},
		{"p5-48xlarge", nil, 2, "gpu 7", "rdmap198s0 rdmap199s0", "same switch as the GPU"},
		{"p5-48xlarge", nil, 8, "node 1", "rdmap147s0 rdmap148s0 rdmap164s0 rdmap165s0 rdmap181s0 rdmap182s0 rdmap198s0 rdmap199s0", "NUMA node 1"},
		{"p5-48xlarge", nil, 8, "node -1", "rdmap79s0 rdmap96s0 rdmap113s0 rdmap130s0 rdmap147s0 rdmap164s0 rdmap181s0 rdmap198s0", "all: the memory's place is unknown"},
		{"p5-48xlarge", nil, 1, "node 5", "rdmap79s0", "all: no device is known to be on NUMA node 5"},
		{"p5en-48xlarge", nil, 8, "gpu 1", "rdmap79s0 rdmap80s0 rdmap81s0 rdmap82s0", "same switch as the GPU"},
		{"p6-b200-48xlarge", nil, 8, "gpu 2", "rdmap79s0 rdmap80s0 rdmap113s0 rdmap114s0 rdmap147s0 rdmap148s0 rdmap181s0 rdmap182s0", "no more devices than max_rails"},
		{"p6-b200-48xlarge", nil, 4, "gpu 2", "rdmap113s0 rdmap114s0", "same switch as the GPU"},
		{"p6e-gb200-36xlarge", nil, 4, "gpu 3", "rdmaP16p1s0 rdmaP17p1s0 rdmaP18p1s0 rdmaP19p1s0", "NUMA node 1"},
		{"p6e-gb300r", nil, 8, "gpu 3", "rdmap1s0 rdmaP16p1s0", "no more devices than max_rails"},
		{"p6e-gb300r", nil, 1, "gpu 1", "rdmap1s0", "NUMA node 0"},
		{"p6e-gb300r", nil, 1, "gpu 2", "rdmaP16p1s0", "NUMA node 1"},
		{"dgx-h100", nil, 8, "gpu 3", "mlx5_0 mlx5_5", "same switch as the GPU, and one for its failure"},
		{"dgx-h100", nil, 8, "node 0", "mlx5_0 mlx5_1 mlx5_3 mlx5_4 mlx5_5", "NUMA node 0"},
		{"dgx-b200", nil, 8, "gpu 4", "mlx5_6 mlx5_7", "same switch as the GPU, and one for its failure"},
		{"gb300", nil, 4, "gpu 0", "mlx5_0 mlx5_1", "same root port as the GPU, and one for its failure"},
		{"gb300", nil, 4, "gpu 1", "mlx5_0 mlx5_1", "same root port as the GPU, and one for its failure"},
		{"gb300", nil, 4, "gpu 3", "mlx5_4 mlx5_5", "same root port as the GPU, and one for its failure"},
		{"gb300", nil, 4, "node 1", "mlx5_4 mlx5_5 mlx5_6", "NUMA node 1"},
		{"frontier", nil, 8, "gpu 1", "cxi0 cxi1 cxi2 cxi3", "no more devices than max_rails"},
		{"frontier", nil, 1, "gpu 1", "cxi0", "same switch as the GPU"},
		{"frontier", nil, 1, "gpu 6", "cxi3", "same root as the GPU"},
		{"frontier", nil, 1, "node 1", "cxi1", "NUMA node 1"},
		{"alps", nil, 1, "gpu 2", "cxi2", "NUMA node 2"},
		{"dgx-spark", nil, 8, "gpu 0", "rocep1s0f1 roceP2p1s0f1", "no more devices than max_rails"},
		{"azure-nd-h100", nil, 8, "gpu 5", "mlx5_ib4 mlx5_ib5 mlx5_ib6 mlx5_ib7", "NUMA node 1"},
		{"azure-nd-h100", azure, 8, "gpu 5", "mlx5_ib4 mlx5_ib5", "same switch as the GPU, and one for its failure"},
		{"azure-nd-h100", azure, 8, "node 1", "mlx5_ib4 mlx5_ib5 mlx5_ib6 mlx5_ib7", "NUMA node 1"},
	} {
		t.Run(fmt.Sprint(c.name, " ", c.place, " most ", c.most, " nested ", len(c.nested)), func(t *testing.T) {
			b := open(t, c.name, c.nested)
			kind, n := "", 0
			_, err := fmt.Sscan(c.place, &kind, &n)
			require.NoError(t, err)
			at := host(n)
			if kind == "gpu" {
				at = b.gpus[n]
			}
			got := rails.Explain(b.devices, b.paths, at, c.most, nil)
			require.Equal(t, []string{c.want, c.why}, []string{b.names(got.Rails), got.Why})
			require.True(t, b.devices[got.Rails[0]].Host, "shared memory reaches all memory")
			require.Equal(t, got.Rails, rails.Nearest(b.devices, b.paths, at, c.most, nil))
		})
	}
}

// On a p5 each GPU has four devices of its own. Eight ranks that each tell what they use take all 32 for their GPUs, and 16 of a node for host memory.
func TestNearestRanks(t *testing.T) {
	b := open(t, "p5-48xlarge", nil)
	used := make([]float64, len(b.devices))
	owner := map[int]int{}
	for rank, at := range b.gpus {
		for _, i := range rails.Nearest(b.devices, b.paths, at, 8, used) {
			if b.devices[i].Host {
				continue
			}
			require.NotContains(t, owner, i, "of rank %d and of %d", owner[i], rank)
			owner[i] = rank
			used[i] += 0.25
		}
	}
	require.Len(t, owner, 32)

	clear(used)
	for rank := range 8 {
		chosen := rails.Nearest(b.devices, b.paths, host(rank%2), 8, used)
		for _, i := range chosen[1:] {
			require.Equal(t, rank%2, b.devices[i].NUMA)
			used[i] += 0.1 // eight of these in some order differ in the last bit
		}
		require.Len(t, chosen, 9)
	}
	for i, d := range b.devices {
		if !d.Host {
			require.InDelta(t, 0.2, used[i], 1e-9, d.Name)
		}
	}
}

// A region's rails are of one fabric, or peers might have no pair of rails for two regions.
func TestNearestOneFabric(t *testing.T) {
	slow := provider.Device{Fabric: "tcp", Name: "eth0", NUMA: 1}
	slowPath := topo.PCIPath{"pci0000:97", "0000:97:01.0", "0000:98:00.0", "0000:99:02.0", "0000:9c:00.0"}
	b := open(t, "dgx-h100", nil)
	b.devices, b.paths = append(b.devices, slow), append(b.paths, slowPath)
	for _, at := range append([]rails.Place{host(0), host(1), host(7), host(-1)}, b.gpus...) {
		require.NotContains(t, b.names(rails.Nearest(b.devices, b.paths, at, 4, nil)), "eth0")
	}
	everything := rails.Nearest(b.devices, b.paths, host(0), 11, nil)
	require.Len(t, everything, len(b.devices), "few enough: all, of all fabrics")
	preferred := rails.Explain(b.devices, b.paths, host(0), 10, nil)
	require.Len(t, preferred.Rails, len(b.devices)-1)
	require.Contains(t, preferred.Why, "preferred fabric")
	var local []provider.Device
	require.Empty(t, rails.Nearest(local, nil, host(0), 8, nil))
	local = append(local, b.devices[0])
	require.Equal(t, []int{0}, rails.Nearest(local, nil, host(0), 8, nil))
}

// Where no device is nearer, the next rule decides.
func TestNearestFlat(t *testing.T) {
	flat := func(domain int) topo.PCIPath {
		return topo.PCIPath{fmt.Sprintf("pci%04d:00", domain), fmt.Sprintf("%04d:00:0%d.0", domain, 1)}
	}
	var devices []provider.Device
	var oneRoot, ownRoots []topo.PCIPath
	for i := range 8 {
		devices = append(devices, provider.Device{Fabric: "efa", Name: fmt.Sprint(i), NUMA: i / 4})
		oneRoot = append(oneRoot, topo.PCIPath{"pci0000:00", fmt.Sprintf("0000:00:0%d.0", i+1)})
		ownRoots = append(ownRoots, flat(i+1))
	}
	for name, c := range map[string]struct {
		paths []topo.PCIPath
		at    rails.Place
		used  []float64
		most  int
		want  []int
	}{
		"all at the GPU's root":               {oneRoot, rails.Place{GPU: topo.PCIPath{"pci0000:00", "0000:00:09.0"}, Node: 1}, nil, 7, []int{4, 5, 6, 7}},
		"all at the GPU's root, node unknown": {oneRoot, rails.Place{GPU: topo.PCIPath{"pci0000:00", "0000:00:09.0"}, Node: -1}, nil, 4, []int{0, 1, 4, 5}},
		"the path of two is known":            {ownRoots[:2], rails.Place{GPU: flat(9), Node: 1}, nil, 7, []int{4, 5, 6, 7}},
		"no path is known":                    {nil, rails.Place{GPU: flat(9), Node: 0}, nil, 7, []int{0, 1, 2, 3}},
		"the GPU's path is unknown":           {ownRoots, rails.Place{Node: 0}, nil, 7, []int{0, 1, 2, 3}},
		"spread over nodes":                   {oneRoot, host(-1), nil, 2, []int{0, 4}},
		"spread over nodes, own roots":        {ownRoots, host(-1), nil, 3, []int{0, 1, 4}},
		"sums that differ in the last bit":    {nil, host(0), []float64{x + 0.2, 0.3, 0.3, 0.3}, 1, []int{0}},
		"no limit is one device":              {nil, host(0), []float64{1}, 0, []int{1}},
	} {
		require.Equal(t, c.want, rails.Nearest(devices, c.paths, c.at, c.most, c.used), name)
	}
}

// x is a variable, or the compiler would add exactly.
var x = 0.1

// Any devices, places and uses: the rules that hold for all.
func TestNearestRules(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		devices, paths, used := drawDevices(r)
		most := rapid.IntRange(-1, 12).Draw(r, "most")
		at := rails.Place{Node: rapid.IntRange(-1, 3).Draw(r, "node")}
		if rapid.Bool().Draw(r, "gpu") {
			at.GPU = drawPath(r, "of the GPU")
		}
		c := rails.Explain(devices, paths, at, most, used)
		if !slices.IsSorted(c.Rails) || len(slices.Compact(slices.Clone(c.Rails))) != len(c.Rails) {
			r.Fatalf("%v: not ascending", c.Rails)
		}
		if len(devices) > 0 && len(c.Rails) == 0 {
			r.Fatal("no rails")
		}
		if few := rails.Explain(devices, paths, at, len(devices), used); !slices.Equal(few.Near, c.Near) {
			r.Fatalf("near are %v, and %v without a limit", c.Near, few.Near)
		}
		name := func(i int) string { return devices[i].Fabric + devices[i].Name }
		chosen, others, fabrics := map[string]bool{}, map[string]bool{}, map[string]bool{}
		for i, d := range devices {
			in := slices.Contains(c.Rails, i)
			switch {
			case d.Host || d.Loopback:
				if !in {
					r.Fatalf("%d serves all memory", i)
				}
			case in:
				chosen[name(i)], fabrics[d.Fabric] = true, true
			}
			if !d.Host && !d.Loopback {
				others[name(i)] = true
			}
		}
		for i, d := range devices {
			if !d.Host && !d.Loopback && chosen[name(i)] != slices.Contains(c.Rails, i) {
				r.Fatalf("a shard of %s goes without it", d.Name)
			}
		}
		if limit := max(1, most); len(others) <= limit && len(chosen) != len(others) || len(chosen) > limit {
			r.Fatalf("%d of %d with most=%d", len(chosen), len(others), most)
		}
		if len(chosen) < len(others) && len(fabrics) > 1 {
			r.Fatalf("fabrics %v", fabrics)
		}
		for _, in := range c.Rails {
			for _, out := range c.Near {
				if !slices.Contains(c.Rails, out) && !devices[in].Host && !devices[in].Loopback && useOf(devices, used, out)+1e-5 < useOf(devices, used, in) {
					r.Fatalf("%d is used more than %d, which is near too", in, out)
				}
			}
		}
		if again := rails.Nearest(slices.Clone(devices), slices.Clone(paths), at, most, slices.Clone(used)); !slices.Equal(again, c.Rails) {
			r.Fatalf("%v, then %v", c.Rails, again)
		}
	})
}

// useOf is the use of a device: that of its most used shard.
func useOf(devices []provider.Device, used []float64, i int) (most float64) {
	for k, d := range devices {
		if d.Fabric == devices[i].Fabric && d.Name == devices[i].Name && k < len(used) {
			most = max(most, used[k])
		}
	}
	return most
}

func drawDevices(r *rapid.T) (devices []provider.Device, paths []topo.PCIPath, used []float64) {
	for i := range rapid.IntRange(0, 14).Draw(r, "devices") {
		d := provider.Device{Fabric: rapid.SampledFrom([]string{"efa", "efa", "efa", "tcp"}).Draw(r, "fabric"), Name: fmt.Sprint(i),
			NUMA: rapid.IntRange(-1, 2).Draw(r, "NUMA"), Shards: rapid.IntRange(0, 2).Draw(r, "shards")}
		d.Loopback = rapid.IntRange(0, 9).Draw(r, "loopback") == 0
		devices = append(devices, d)
	}
	devices = rails.Shards(devices, 20)
	for range rapid.IntRange(0, len(devices)).Draw(r, "known") {
		paths = append(paths, drawPath(r, "path"))
	}
	for range rapid.IntRange(0, len(devices)).Draw(r, "uses") {
		used = append(used, rapid.SampledFrom([]float64{0, 0.25, 0.1 + 0.2, 0.3, 1, 7}).Draw(r, "use"))
	}
	return devices, paths, used
}

func drawPath(r *rapid.T, what string) topo.PCIPath {
	root, up, slot := rapid.IntRange(0, 2).Draw(r, what), rapid.IntRange(0, 2).Draw(r, "switch"), rapid.IntRange(1, 9).Draw(r, "slot")
	switch {
	case root == 0 && up == 0:
		return nil
	case up == 0:
		return topo.PCIPath{fmt.Sprint("pci000", root), fmt.Sprintf("000%d:0%d:00.0", root, slot)}
	}
	return topo.PCIPath{fmt.Sprint("pci000", root), fmt.Sprintf("000%d:00:0%d.0", root, up), fmt.Sprintf("000%d:0%d:00.0", root, up), fmt.Sprintf("000%d:1%d:0%d.0", root, up, slot),
		fmt.Sprintf("000%d:%d%d:00.0", root, up+1, slot)}
}

// The parts are exact: each rank has devices/ranks, each device is given away once, and a rank's devices are side by side.
func TestShare(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		devices, ranks := rapid.IntRange(0, 64).Draw(r, "devices"), rapid.IntRange(1, 300).Draw(r, "ranks")
		given := make([]int, devices) // in parts of 1/ranks
		for rank := range ranks {
			sum, first, last, some := 0, -1, -1, 0
			for i, part := range rails.Share(devices, ranks, rank) {
				units := int(math.Round(part * float64(ranks)))
				if part != float64(units)/float64(ranks) || part < 0 || part > 1 {
					r.Fatalf("%v is no part of 1/%d", part, ranks)
				}
				sum += units
				given[i] += units
				if units > 0 {
					if some++; first < 0 {
						first = i
					}
					last = i
				}
			}
			if sum != devices {
				r.Fatalf("rank %d of %d has %d/%d", rank, ranks, sum, ranks)
			}
			if some > 0 && last-first+1 != some || some > (devices+ranks-1)/ranks+1 {
				r.Fatalf("rank %d of %d has %d of the devices %d to %d", rank, ranks, some, first, last)
			}
		}
		for i, units := range given {
			if units != ranks {
				r.Fatalf("device %d is given away %d/%d times", i, units, ranks)
			}
		}
	})
	require.Equal(t, []float64{0, 0, 0, 0, 1, 1, 1, 1}, rails.Share(8, 2, 1))
	require.Equal(t, []float64{0, 0.5}, rails.Share(2, 4, 2))
	require.Equal(t, []float64{1, 0.5, 0}, rails.Share(3, 2, 0))
	for _, alone := range [][]float64{rails.Share(2, 1, 0), rails.Share(2, 0, 0), rails.Share(2, 3, 3), rails.Share(2, 3, -1)} {
		require.Equal(t, []float64{1, 1}, alone)
	}
	require.Empty(t, rails.Share(-1, 3, 1))
}
