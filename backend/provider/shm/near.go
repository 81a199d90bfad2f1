package shm

import (
	"os"

	"golang.org/x/sys/unix"

	"gorail/backend/provider/shm/cma"
	"gorail/backend/topo"
)

// binds says for each node where threads that copy run: on its processors that this process may use, or on all of those where the node has
// fewer than there are threads. Nothing where there is no choice: all that may be used are on one node.
func binds(nodes []topo.Node, allowed map[int]bool, threads int) (out []cma.Bind) {
	var all []int
	of := make([][]int, len(nodes))
	some := 0
	for i, n := range nodes {
		for _, cpu := range n.CPUs {
			if allowed[cpu] {
				of[i] = append(of[i], cpu)
			}
		}
		all = append(all, of[i]...)
		if len(of[i]) > 0 {
			some++
		}
	}
	if some < 2 || len(nodes) > cma.MaxNodes {
		return nil
	}
	for i, n := range nodes {
		cpus := of[i]
		if len(cpus) < threads {
			cpus = all
		}
		out = append(out, cma.Bind{Node: n.ID, CPUs: cpus})
	}
	return out
}

// allowed are the processors that this process may use. Implements sched_getaffinity(2).
func allowed() map[int]bool {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	cpus := map[int]bool{}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus[cpu] = true
		}
	}
	return cpus
}

// near is what the rail is told of this machine.
func near(threads int) []cma.Bind { return binds(topo.Nodes(os.DirFS("/sys")), allowed(), threads) }
