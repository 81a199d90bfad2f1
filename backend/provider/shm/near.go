package shm

/*
#include "local.h"
*/
import "C"

import (
	"os"

	"golang.org/x/sys/unix"

	"gorail/backend/topo"
)

// bind is where threads that copy run while they work on memory of a NUMA node.
type bind struct {
	node int
	cpus []int
}

// binds says it for each node, of the processors that this process may use: those of the node, or all where the node has fewer of them
// than there are threads. Nothing where there is no choice: all that may be used are on one node.
func binds(nodes []topo.Node, allowed map[int]bool, threads int) (out []bind) {
	var all []int
	near := make([][]int, len(nodes))
	some := 0
	for i, n := range nodes {
		for _, cpu := range n.CPUs {
			if allowed[cpu] {
				near[i] = append(near[i], cpu)
			}
		}
		all = append(all, near[i]...)
		if len(near[i]) > 0 {
			some++
		}
	}
	if some < 2 || len(nodes) > C.LC_NODES {
		return nil
	}
	for i, n := range nodes {
		cpus := near[i]
		if len(cpus) < threads {
			cpus = all
		}
		out = append(out, bind{n.ID, cpus})
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

// nodes is what the rail is told of this machine.
func nodes(threads int) (out C.lc_nodes) {
	for _, b := range binds(topo.Nodes(os.DirFS("/sys")), allowed(), threads) {
		n := &out.node[out.n]
		n.id = C.int(b.node)
		for _, cpu := range b.cpus {
			n.cpus[cpu/64] |= 1 << (cpu % 64) // allowed has no more than CPUSet
		}
		out.n++
	}
	return out
}
