package e2e

import (
	"fmt"
	"os"
	"slices"
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
				p.endGPU(t, a, b)
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

// endGPU ends both agents and frees the memory. Nothing is open then in either GPU driver.
func (p *pairOf) endGPU(t testing.TB, memory ...*worker.Buf) {
	t.Helper()
	require.NoError(t, p.ini.Close())
	require.NoError(t, p.tgt.Close())
	for _, b := range memory {
		b.Free()
	}
	gpuEmpty(t, p.ini, p.tgt)
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
		p.endGPU(t, a, b)
	})
}

// TestVRAMFreedUnsaid: the application frees GPU memory without a deregistration, and registers new memory at the same
// address. The log says so, and transfers read the new memory.
func TestVRAMFreedUnsaid(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	o := gpuHost(t)
	o.Setenv = append(o.Setenv, "GORAIL_LOG=info")
	p := &pairOf{env: o.Env, ini: agent(process(t, o), o.Env, "alice"), tgt: agent(process(t, o), o.Env, "bob")}
	p.tgt.Polling(true)
	a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, device(1))
	p.ini.Learn(p.tgt)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob"})
	x.Do(limit)
	a.Want(seedB)
	b.Free()
	again := p.tgt.AllocGPU(size, device(1))
	require.Equal(t, b.Addr, again.Addr, "the imitation returned another address")
	again.Fill(seedC)
	require.NoError(t, p.tgt.Register(again.All()))
	says(t, p.tgt.Worker, "is mapped at registered addresses")
	x.Do(limit)
	a.Want(seedC)
	require.NoError(t, x.Release())
	require.NoError(t, p.ini.Close())
	require.NoError(t, p.tgt.Close())
	a.Free()
	again.Free()
	for w, mistake := range map[*worker.Agent]string{p.ini: "", p.tgt: "memory was freed while a peer had it mapped by an IPC handle"} {
		open, wrong := w.GPUState()
		if os.Getenv("GORAIL_TEST_CUDA") != "" {
			mistake = "" // the real driver reports no breaches
		}
		require.Equal(t, mistake, strings.TrimSpace(wrong), "breaches other than the application's")
		require.Empty(t, open)
	}
}

// TestVRAMReleased: transfers are released in progress, and the next transfer succeeds. When the target's process is
// killed, the transfer in progress ends with an error.
func TestVRAMReleased(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	t.Run("released", func(t *testing.T) {
		p := gpuPair(t)
		a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, device(1))
		p.ini.Learn(p.tgt)
		l := worker.Layout{Len: 64, Stride: 64, Count: 300_000, Shuffle: 1}
		for range 5 {
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.At(l), Remote: b.At(l), Peer: "bob", Notif: []byte("never")})
			x.Post()
			require.NoError(t, x.Release())
		}
		p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("whole")}).Do(limit)
		b.Want(seedA)
		require.NotEmpty(t, p.tgt.WaitNotifs(1, limit))
		a.Want(seedA)
	})
	t.Run("killed", func(t *testing.T) {
		p := gpuPair(t)
		a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, device(1))
		p.ini.Learn(p.tgt)
		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob"})
		x.Do(limit)
		loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
		p.tgt.Kill()
		require.Less(t, loop.Wait().Status, nixlapi.Success)
		require.NoError(t, x.Release())
		require.NoError(t, p.ini.Deregister(a.All()))
		a.Free()
		gpuClean(t, p.ini)
	})
}

// imitatedPair is gpuPair with the imitation of the driver, and with other environments for the two processes.
func imitatedPair(t *testing.T, alice, bob []string) *pairOf {
	t.Helper()
	o := gpuHost(t)
	o.Setenv = append(o.Setenv, "GORAIL_CUDA_PATH="+cuda.Build(t).Path, "GORAIL_LOG=info")
	start := func(name string, env []string) *worker.Agent {
		o := o
		o.Setenv = append(slices.Clip(o.Setenv), env...)
		return agent(process(t, o), o.Env, name)
	}
	p := &pairOf{env: o.Env, ini: start("alice", alice), tgt: start("bob", bob)}
	p.tgt.Polling(true)
	return p
}

// wayCase is a pair of memories, and whether the initiator's GPU copies directly.
type wayCase struct {
	env    [2][]string // of alice and bob
	there  worker.GPUMem
	direct bool
	warns  string // alice's warning
}

func (c *wayCase) try(t *testing.T) {
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		const size = 2 * cuda.Granule
		p := imitatedPair(t, c.env[0], c.env[1])
		a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, c.there)
		p.ini.Learn(p.tgt)
		x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("here")})
		x.Do(limit)
		require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
		if op == nixlapi.Write {
			b.Want(seedA)
		} else {
			a.Want(seedB)
		}
		if c.direct {
			require.NotContains(t, p.ini.Output(), "bounce buffers")
		} else {
			says(t, p.ini.Worker, "transfers go through bounce buffers", c.warns)
			says(t, p.ini.Worker, "path to peer changed", "VRAM:ipc or staged (", c.warns)
			says(t, p.ini.Worker, "WARN", c.warns)
		}
		require.NoError(t, x.Release())
		p.endGPU(t, a, b)
	})
}

// TestVRAMOtherVisibleGPU: two processes that show different GPUs to their applications, as CUDA_VISIBLE_DEVICES says. The GPU
// of one copies to memory of the other's.
func TestVRAMOtherVisibleGPU(t *testing.T) {
	t.Parallel()
	env := [2][]string{{"CUDA_VISIBLE_DEVICES=0"}, {"CUDA_VISIBLE_DEVICES=1"}}
	for name, mem := range map[string]worker.GPUMem{"ipc": device(0), "vmm": {Handles: 2}} {
		t.Run(name, func(t *testing.T) { (&wayCase{env: env, there: mem, direct: true}).try(t) })
	}
}

// TestVRAMHiddenGPU: the initiator's container has no device node of the target's GPU. A warning has the remedy, and the bytes
// go through bounce buffers.
func TestVRAMHiddenGPU(t *testing.T) {
	t.Parallel()
	env := [2][]string{{"CUDA_VISIBLE_DEVICES=0", "GORAIL_TEST_GPU_SWITCHES=hidden=2"}, {"CUDA_VISIBLE_DEVICES=1"}}
	for name, mem := range map[string]worker.GPUMem{"ipc": device(0), "vmm": {Handles: 2}} {
		t.Run(name, func(t *testing.T) { (&wayCase{env: env, there: mem, warns: "give both pods both devices"}).try(t) })
	}
}

// TestVRAMUnknownHandle: the driver takes the handles of the target for the initiator's own, and the handles are not laid out
// as known. A warning says so. VMM memory on the target's GPU takes the bytes.
func TestVRAMUnknownHandle(t *testing.T) {
	t.Parallel()
	same := []string{"GORAIL_TEST_GPU_SWITCHES=pid=7,layout=1"}
	(&wayCase{env: [2][]string{same, same}, there: device(1), warns: "takes the peer's IPC handle for one of ours"}).try(t)
}
