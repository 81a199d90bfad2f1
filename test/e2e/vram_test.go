package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// smProvider is the provider for one host. sm alone has no address that another pod reaches.
func smProvider() string {
	if os.Getenv(envWalls) != "" {
		return "auto"
	}
	return "sm"
}

// gpuHost are options of workers that see the imitation's GPUs, or with GORAIL_TEST_CUDA this machine's GPUs.
func gpuHost(t testing.TB) worker.Options {
	t.Helper()
	path := os.Getenv("GORAIL_TEST_CUDA")
	if path == "" {
		path = cuda.Build(t).Path
	}
	provider := smProvider()
	if p := os.Getenv("GORAIL_TEST_GPU_PROVIDER"); p != "" { // verbs, efa, ..., if the machine has such devices
		provider = p
	}
	setenv := []string{"GORAIL_PROVIDER=" + provider, "GORAIL_CUDA_PATH=" + path}
	if os.Getenv(envWalls) != "" { // pods share the imitation's memory by files
		setenv = append(setenv, "GORAIL_TEST_GPU_NODE="+t.TempDir())
	}
	return worker.Options{Env: testenv.Need(t), Setenv: setenv}
}

// gpuPair is pair with the options of gpuHost.
func gpuPair(t testing.TB, opts ...option) *pairOf {
	t.Helper()
	o := gpuHost(t)
	p := &pairOf{env: o.Env, ini: agent(process(t, o), o.Env, "alice", opts...), tgt: agent(process(t, o), o.Env, "bob", opts...)}
	p.tgt.Polling(true)
	return p
}

func device(n int) worker.GPUMem { return worker.GPUMem{Device: n, Kind: int(cuda.Device)} }

// TestVRAMTwoProcesses transfers GPU memory between two processes, whole buffers and scattered blocks, on two GPUs and on
// one.
func TestVRAMTwoProcesses(t *testing.T) {
	t.Parallel()
	for _, gpus := range [][2]int{{0, 1}, {1, 1}} {
		t.Run(fmt.Sprintf("GPUs %d,%d", gpus[0], gpus[1]), func(t *testing.T) {
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				const size = 8 << 20
				p := gpuPair(t)
				a, b := p.ini.GPUBuffer(size, seedA, device(gpus[0])), p.tgt.GPUBuffer(size, seedB, device(gpus[1]))
				p.ini.Learn(p.tgt)
				la, lb := scattered(7, 4096, 100, 1000, 1), scattered(9, 4096, 300, 1000, 2)
				x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: "bob", Notif: []byte("here")})
				x.Do(limit)
				require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
				want(op, a, b, la, lb)
				require.NoError(t, x.Release())
				whole := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"})
				a.Fill(seedA)
				b.Fill(seedB)
				for range 3 {
					whole.Do(limit)
				}
				if op == nixlapi.Write {
					b.Want(seedA)
				} else {
					a.Want(seedB)
				}
				require.NoError(t, p.ini.Close())
				require.NoError(t, p.tgt.Close())
				a.Free()
				b.Free()
				gpuEmpty(t, p.ini, p.tgt)
			})
		})
	}
}

// gpuClean closes agents and calls gpuEmpty.
func gpuClean(t testing.TB, agents ...*worker.Agent) {
	t.Helper()
	for _, a := range agents {
		require.NoError(t, a.Close())
	}
	gpuEmpty(t, agents...)
}

// gpuEmpty requires nothing open in the GPU driver of each agent's process, and no call that a real driver would not bear.
func gpuEmpty(t testing.TB, agents ...*worker.Agent) {
	t.Helper()
	for _, a := range agents {
		open, wrong := a.GPUState()
		require.Empty(t, wrong)
		require.Empty(t, open)
	}
}

// TestVRAMUnmappable: memory that no peer can map is staged over a ring on its GPU, and the log says why. Transfers to other
// memory of the same peer are not staged.
func TestVRAMUnmappable(t *testing.T) {
	t.Parallel()
	for reason, m := range map[string]worker.GPUMem{
		"VMM memory made without a handle type that can be shared": {Device: 1, Handles: 2, Private: true},
		"memory of a stream-ordered pool (cudaMallocAsync)":        {Device: 1, Kind: int(cuda.Pool)},
	} {
		t.Run(reason, func(t *testing.T) {
			const size = 2 * cuda.Granule
			p := stagedPair(t, "sm")
			a, b, good := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, m), p.tgt.GPUBuffer(size, seedB, device(1))
			p.ini.Learn(p.tgt)
			p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: good.All(), Peer: "bob"}).Do(limit)
			require.NotContains(t, p.ini.Output(), "transfers go through bounce buffers")
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
			for range 3 {
				x.Do(limit)
			}
			b.Want(seedA)
			says(t, p.ini.Worker, reason)
			require.Equal(t, 1, strings.Count(p.ini.Output(), "transfers go through bounce buffers"), "more than one line")
			require.Contains(t, p.ini.Output(), "buffers_here=false buffers_there=true", "one copy on each side")
			good.Want(seedA)
		})
	}
}

// TestVRAMHandles: VMM memory of another process has more handles than one message can carry descriptors. Its regions begin
// inside a handle. Both sides have closed all descriptors and mappings at the end.
func TestVRAMHandles(t *testing.T) {
	t.Parallel()
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		const n, size = 70, 70 * cuda.Granule
		p := gpuPair(t)
		m := worker.GPUMem{Device: 1, Handles: n}
		a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.AllocGPU(size, m)
		b.Fill(seedB)
		require.NoError(t, p.tgt.Register(b.Span(0, 69*cuda.Granule+5), b.Span(69*cuda.Granule+5, cuda.Granule-5)))
		p.ini.Learn(p.tgt)
		la, lb := scattered(7, 4096, 100, 1000, 1), scattered(9, 4096, cuda.Granule/16, 1000, 2)
		x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: "bob"})
		x.Do(limit)
		want(op, a, b, la, lb)
		require.NoError(t, x.Release())
		a.Fill(seedA)
		b.Fill(seedB)
		edge := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.Span(0, 10), Remote: b.Span(69*cuda.Granule+5, 10), Peer: "bob"})
		edge.Do(limit)
		if op == nixlapi.Read {
			require.EqualValues(t, -1, a.Diff(0, 10, seedB, 69*cuda.Granule+5))
		} else {
			require.EqualValues(t, -1, b.Diff(69*cuda.Granule+5, 10, seedA, 0))
		}
		require.NoError(t, edge.Release())
		// Only second descriptors of the same memory count: a busy machine maps slowly and stages, and the ring has one
		// descriptor of its own memory.
		require.True(t, worker.Eventually(limit, func() bool { return p.tgt.Stats().Doubles == 0 }), "%d sent descriptors are still open", p.tgt.Stats().Doubles)
		require.NoError(t, p.ini.Close())
		require.NoError(t, p.tgt.Close())
		a.Free()
		b.Free()
		gpuEmpty(t, p.ini, p.tgt)
	})
}
