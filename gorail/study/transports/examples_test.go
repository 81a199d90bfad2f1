package transports

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSaid: what programs have measured is said in words, and what they have not measured is not.
func TestSaid(t *testing.T) {
	require.Equal(t, []string{"GORAIL tcp, gradients summed beside the backward pass: it takes 12 % longer by a ring, 31 % by a tree (ring alone: 1.50 GB/s)."},
		said("gradient_sync", "GORAIL tcp", map[string]float64{"ring overhead_percent": 12.2, "tree overhead_percent": 30.6, "ring bus_gb_per_s": 1.5}))
	require.Empty(t, said("gradient_sync", "GORAIL tcp", map[string]float64{"ring overhead_percent": 12.2}))
	memory := map[string]float64{"memory save_gb_per_s": 2, "memory restore_gb_per_s": 3}
	require.Equal(t, []string{"GORAIL shm, a checkpoint: saved to a store's memory with 2.00 GB/s, restored with 3.00."}, said("checkpoint", "GORAIL shm", memory))
	memory["file save_gb_per_s"], memory["file restore_gb_per_s"] = 1, 1.5
	require.Contains(t, said("checkpoint", "GORAIL shm", memory)[0], "; to a file with 1.00, restored with 1.50.")
	require.Equal(t, []string{"GORAIL tcp, weights to three workers: 1.00 GB/s flat, 2.00 by a tree."}, said("weights", "GORAIL tcp", map[string]float64{"flat gb_per_s": 1, "tree gb_per_s": 2}))
	require.Empty(t, said("other", "GORAIL tcp", nil))
}
