package topo

import (
	"io/fs"
	"strconv"
	"strings"
)

// Node is a NUMA node that has processors.
type Node struct {
	ID   int
	CPUs []int // online CPUs, by number
}

// Nodes lists the NUMA nodes that have processors. It returns none if sysfs has no nodes.
func Nodes(sys fs.FS) (nodes []Node) {
	const dir = "devices/system/node"
	t := tree{sys}
	for _, name := range t.names(dir) {
		id, err := strconv.Atoi(strings.TrimPrefix(name, "node"))
		if err != nil || !strings.HasPrefix(name, "node") {
			continue
		}
		if cpus := cpuList(t.word(dir + "/" + name + "/cpulist")); len(cpus) > 0 {
			nodes = append(nodes, Node{id, cpus})
		}
	}
	return nodes
}

// cpuList parses "0-3,8". It skips malformed parts.
func cpuList(text string) (cpus []int) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || to-from > 1<<16 {
			continue
		}
		for cpu := from; cpu <= to; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}
