package shm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/shm/cma"
	"gorail/backend/topo"
	"gorail/test/topotest"
)

func TestBinds(t *testing.T) {
	cpus := func(from, to int) (out []int) {
		for cpu := from; cpu <= to; cpu++ {
			out = append(out, cpu)
		}
		return out
	}
	may := func(list ...[]int) map[int]bool {
		set := map[int]bool{}
		for _, l := range list {
			for _, cpu := range l {
				set[cpu] = true
			}
		}
		return set
	}
	bind := func(node int, cpus []int) cma.Bind { return cma.Bind{Node: node, CPUs: cpus} }
	two := topo.Nodes(topotest.FS(t, "../../topo/testdata/dgx-h100.txt"))
	for _, c := range []struct {
		why     string
		nodes   []topo.Node
		allowed map[int]bool
		threads int
		want    []cma.Bind
	}{
		{"each near its memory", two, may(cpus(0, 111)), 4, []cma.Bind{bind(0, cpus(0, 55)), bind(1, cpus(56, 111))}},
		{"one node", two[:1], may(cpus(0, 223)), 4, nil},
		{"one node may be used", two, may(cpus(56, 63)), 4, nil},
		{"no topology", nil, may(cpus(0, 7)), 4, nil},
		{"no affinity", two, nil, 4, nil},
		{"too few of one for all threads", two, may(cpus(54, 60)), 4, []cma.Bind{bind(0, cpus(54, 60)), bind(1, cpus(56, 60))}},
		{"none of one, which has memory all the same", []topo.Node{{ID: 0, CPUs: cpus(0, 3)}, {ID: 2, CPUs: cpus(4, 7)}, {ID: 3, CPUs: cpus(8, 9)}}, may(cpus(0, 7)), 2,
			[]cma.Bind{bind(0, cpus(0, 3)), bind(2, cpus(4, 7)), bind(3, cpus(0, 7))}},
	} {
		require.Equal(t, c.want, numaBinds(c.nodes, c.allowed, c.threads), c.why)
	}
}
