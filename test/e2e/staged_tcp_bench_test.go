package e2e

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// BenchmarkVRAMOverTCP transfers GPU memory over tcp on loopback, by GORAIL and then by the wheel's UCX, if there is a wheel with
// UCX and a GPU. GORAIL has eight connections on machines of 16 processors and more. Without GORAIL_TEST_CUDA it runs over the
// imitation, without its delays: those figures show what GORAIL adds, and nothing about GPUs. GORAIL_TEST_GPUS=1: one GPU.
//
//	GORAIL_TEST_CUDA=libcuda.so.1 go test ./test/e2e -run NONE -bench VRAMOverTCP -benchtime 1x
func BenchmarkVRAMOverTCP(b *testing.B) {
	const room = 256 << 20
	real, far := os.Getenv("GORAIL_TEST_CUDA") != "", 1
	if os.Getenv("GORAIL_TEST_GPUS") == "1" {
		far = 0
	}
	for _, backend := range []string{"GORAIL", "UCX"} {
		o := gpuHost(b)
		o.Env.Backend, o.Env.PluginDir = backend, o.Env.PluginDirOf(backend)
		if backend == "UCX" && (!real || o.Env.Check() != nil) {
			continue
		}
		o.Setenv = append(o.Setenv, "GORAIL_PROVIDER=tcp", "GORAIL_DEVICES=lo", "UCX_TLS=tcp,cuda_copy", "UCX_NET_DEVICES=lo")
		if runtime.NumCPU() >= 16 && os.Getenv("GORAIL_TCP_THREADS") == "" {
			o.Setenv = append(o.Setenv, "GORAIL_TCP_THREADS=8")
		}
		ini, tgt := agent(process(b, o), o.Env, "alice"), agent(process(b, o), o.Env, "bob")
		tgt.Polling(true)
		mine, theirs := ini.GPUBuffer(room, seedA, device(0)), tgt.GPUBuffer(room, seedB, device(far))
		if !real {
			ini.GPUSwitch("late", 0)
			tgt.GPUSwitch("late", 0)
		}
		ini.Learn(tgt)
		for _, s := range []struct {
			n     int
			block uint64
			runs  int
		}{{1, 4 << 10, 500}, {1, 64 << 10, 500}, {1, 1 << 20, 200}, {64, 4 << 10, 100}, {1, room, 10}} {
			for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				b.Run(fmt.Sprintf("%s/%dx%d/%s", backend, s.n, s.block, op), func(b *testing.B) { measure(b, ini, op, mine, theirs, s.n, s.block, s.runs) })
			}
		}
		ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: mine.All(), Remote: theirs.All(), Peer: "bob"}).Do(long)
		theirs.Want(seedA)
		require.NoError(b, ini.Close())
		require.NoError(b, tgt.Close())
	}
}
