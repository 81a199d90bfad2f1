package shm

import (
	"os"

	"golang.org/x/sys/unix"

	"gorail/backend/provider/shm/cma"
	"gorail/backend/topo"
)

// numaBinds lists, for each NUMA node, the processors on which copying threads run. They are the node's allowed
// processors, or all allowed processors if the node has fewer than there are threads. The list is empty if all
// allowed processors are on one node, or if there are more than cma.MaxNodes nodes.
func numaBinds(nodes []topo.Node, allowed map[int]bool, threads int) (out []cma.Bind) {
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

// allowedCPUs are the processors that this process may use. Implements sched_getaffinity(2).
func allowedCPUs() map[int]bool {
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

// localBinds is numaBinds for this machine.
func localBinds(threads int) []cma.Bind {
	return numaBinds(topo.Nodes(os.DirFS("/sys")), allowedCPUs(), threads)
}
