package e2e

import (
	"fmt"
	"os"
	"testing"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// BenchmarkStaged transfers GPU memory that is staged: over tcp, between host memory and a GPU, and to memory that peers
// cannot map. For comparison it transfers VMM memory that peers can map. With GORAIL_TEST_BACKEND=UCX it measures the
// wheel's plugin; GORAIL_TEST_STAGED names one case:
//
//	GORAIL_TEST_CUDA=libcuda.so.1 go test ./test/e2e -run NONE -bench Staged -benchtime 1x
func BenchmarkStaged(b *testing.B) {
	if os.Getenv("GORAIL_TEST_CUDA") == "" {
		b.Skip("needs GPUs: GORAIL_TEST_CUDA=libcuda.so.1")
	}
	const large = 256 << 20
	far := 1
	if os.Getenv("GORAIL_TEST_GPUS") == "1" {
		far = 0
	}
	ucx := testenv.Load().Backend == "UCX"
	vmm := func(private bool) *worker.GPUMem {
		return &worker.GPUMem{Device: far, Handles: large / (32 << 20), Private: private}
	}
	for _, c := range []struct {
		name, provider string
		here, there    *worker.GPUMem
	}{
		{"tcp,VRAM,VRAM", "tcp", gpuMem(0), gpuMem(far)}, {"tcp,host,VRAM", "tcp", nil, gpuMem(far)},
		{"sm,host,VRAM", "sm", nil, gpuMem(far)}, {"sm,VRAM,host", "sm", gpuMem(0), nil},
		{"sm,VRAM,VMM", "sm", gpuMem(0), vmm(false)}, {"sm,VRAM,private", "sm", gpuMem(0), vmm(true)},
		{"sm,VRAM,pool", "sm", gpuMem(0), &worker.GPUMem{Device: far, Kind: int(cuda.Pool)}},
	} {
		if only := os.Getenv("GORAIL_TEST_STAGED"); only != "" && only != c.name {
			continue
		}
		room := uint64(large)
		if c.provider == "sm" && (c.here == nil || c.there == nil) {
			room *= 4 // at the rate of PCIe the first and the last chunk would count too much
		}
		o := gpuHost(b)
		o.Setenv = append(o.Setenv, "GORAIL_PROVIDER="+c.provider)
		if c.provider == "tcp" {
			o.Setenv = append(o.Setenv, "UCX_TLS=tcp,cuda_copy", "GORAIL_DEVICES=lo", "UCX_NET_DEVICES=lo")
		}
		ini, tgt := agent(process(b, o), o.Env, "alice"), agent(process(b, o), o.Env, "bob")
		tgt.Polling(true)
		mine, theirs := buffer(ini, room, seedA, c.here), buffer(tgt, room, seedB, c.there)
		ini.Learn(tgt)
		for _, s := range []struct {
			n     int
			block uint64
			runs  int
		}{{1, 4 << 10, 50}, {1, 1 << 20, 50}, {1, room, 10}, {10_000, 8 << 10, 10}} {
			for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				b.Run(fmt.Sprintf("%s/%dx%d/%s", c.name, s.n, s.block, op), func(b *testing.B) {
					if ucx && s.n > 1 {
						s.runs = 2
					}
					measure(b, ini, op, mine, theirs, s.n, s.block, s.runs)
				})
			}
		}
		_ = ini.Close()
		_ = tgt.Close()
	}
}
