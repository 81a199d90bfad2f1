package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/gorail/bench/layout"
	"gorail/gorail/measure"
	"gorail/test/cuda"
)

// small are flags of runs whose figures do not matter.
var small = []string{"--repeats", "1", "--limits", ""}

// TestBenchBlocks: blocks by their ids, in every order, with several in flight, in both directions, also by the limits. Making, posting
// and the rest are timed apart.
func TestBenchBlocks(t *testing.T) {
	env := needs(t)
	r := bench(t, "--wheel", env.WheelDir, "--layout", "blocks", "--block-size", "100", "--blocks", "40", "--depth", "1,2", "--threads", "2", "--op_type", "WRITE,READ", "--repeats", "1")
	require.Len(t, r.Samples, 2*2+2*3, "with depth 1 the limits, too")
	for _, s := range r.Samples {
		require.Equal(t, measure.Point{Op: s.Point.Op, Block: 100, Batch: 40, Depth: s.Point.Depth, Threads: 2, Dense: true, IDs: layout.Random, Pool: 2}, s.Point)
		if s.Subject == "GORAIL" {
			require.Equal(t, s.Done, s.Makes.Count())
			require.Equal(t, s.Done, s.Post.Count())
			require.Positive(t, s.Make)
		}
	}
	for _, ids := range []string{layout.Runs, layout.InOrder} {
		r = bench(t, append(small, "--wheel", env.WheelDir, "--layout", "blocks", "--block-size", "64", "--blocks", "40", "--pool", "1", "--ids", ids)...)
		require.Len(t, r.Samples, 1)
		require.Contains(t, r.Setup, "ids "+ids)
	}
	r = bench(t, append(small, "--wheel", env.WheelDir, "--layout", "deepseek-mla", "--blocks", "2", "--num_iter", "2")...)
	require.EqualValues(t, 73_728, r.Samples[0].Point.Block)
	require.Equal(t, 2, r.Samples[0].Point.Batch)
}

// gpus lets the processes see the imitation's two GPUs, or with GORAIL_TEST_CUDA this machine's.
func gpus(t *testing.T) {
	path := os.Getenv("GORAIL_TEST_CUDA")
	if path == "" {
		path = cuda.Build(t).Path
	}
	t.Setenv("GORAIL_CUDA_PATH", path)
}

// TestBenchGPUs: memory of two GPUs, of both kinds, and of a GPU at one side only. Every byte is compared.
func TestBenchGPUs(t *testing.T) {
	env := needs(t)
	gpus(t)
	for _, args := range []string{"--memory vram --gpus 0,1", "--memory VRAM --enable_vmm --gpus 1", "--initiator_seg_type VRAM --target_seg_type DRAM",
		"--memory vram --layout blocks --blocks 5 --block_size 4K --gpus 0,1"} {
		words := strings.Fields(args)
		if !strings.Contains(args, "layout") {
			words = append(words, "--shapes", "4K,3x100")
		}
		r := bench(t, append(append(small, words...), "--wheel", env.WheelDir, "--op_type", "WRITE,READ", "--num_iter", "3")...)
		require.NotEmpty(t, r.GPUs, args)
		require.Empty(t, r.Limits)
	}
}
