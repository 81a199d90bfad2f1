package topo_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/topo"
	"gorail/backend/topo/topotest"
)

func TestNodes(t *testing.T) {
	nodes := topo.Nodes(topotest.FS(t, "testdata/dgx-h100.txt"))
	require.Len(t, nodes, 2)
	for i, n := range nodes {
		require.Equal(t, i, n.ID)
		require.Len(t, n.CPUs, 112)
	}
	require.Equal(t, []int{0, 55, 112, 167}, []int{nodes[0].CPUs[0], nodes[0].CPUs[55], nodes[0].CPUs[56], nodes[0].CPUs[111]})
	require.Equal(t, 56, nodes[1].CPUs[0])

	for _, c := range []struct {
		text string
		want []topo.Node
	}{
		{"", nil},
		{"node 0 cpus=0", []topo.Node{{ID: 0, CPUs: []int{0}}}},
		{"node 10 cpus=4-5\nnode 2 cpus=0,2-3\nnode 3 cpus=", []topo.Node{{ID: 2, CPUs: []int{0, 2, 3}}, {ID: 10, CPUs: []int{4, 5}}}}, // node 3 has only memory
		{"node 0 cpus=x-1,7,5-4", []topo.Node{{ID: 0, CPUs: []int{7}}}},
	} {
		require.Equal(t, c.want, topo.Nodes(topotest.Parse(t, c.text)), c.text)
	}
}
