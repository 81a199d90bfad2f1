package e2e

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// BenchmarkVRAM transfers between two GPUs, or within one GPU with GORAIL_TEST_GPUS=1. The memory is of cudaMalloc, or of VMM
// handles with GORAIL_TEST_VMM=1 (private: handles that cannot be shared); GORAIL_TEST_WALLS=pods puts the agents into two pods. It reports the median times of the
// post and of the transfer. With GORAIL_TEST_BACKEND=UCX it measures the wheel's plugin:
//
//	GORAIL_TEST_CUDA=libcuda.so.1 go test ./test/e2e -run NONE -bench VRAM -benchtime 1x
func BenchmarkVRAM(b *testing.B) {
	if os.Getenv("GORAIL_TEST_CUDA") == "" {
		b.Skip("needs GPUs: GORAIL_TEST_CUDA=libcuda.so.1")
	}
	const room = 1 << 30
	o := gpuHost(b)
	far := 1
	if os.Getenv("GORAIL_TEST_GPUS") == "1" {
		far = 0
	}
	for _, on := range []bool{false, true} {
		ini, tgt := agent(process(b, o), o.Env, "alice", progress(on)), agent(process(b, o), o.Env, "bob", progress(on))
		tgt.Polling(true)
		kind := func(n int) worker.GPUMem { return device(n) }
		if os.Getenv("GORAIL_TEST_VMM") != "" {
			private := os.Getenv("GORAIL_TEST_VMM") == "private" // no other process can map it: bounce buffers
			kind = func(n int) worker.GPUMem { return worker.GPUMem{Device: n, Handles: 4, Private: private} }
		}
		mine, theirs := ini.GPUBuffer(room, seedA, kind(0)), tgt.GPUBuffer(room, seedB, kind(far))
		ini.Learn(tgt)
		for _, s := range []struct {
			n     int
			block uint64
			runs  int
		}{{1, 4 << 10, 500}, {1, 1 << 20, 300}, {1, 64 << 20, 50}, {1, 1 << 30, 10}, {64, 8 << 10, 300}, {10_000, 1 << 10, 100},
			{10_000, 8 << 10, 60}, {100_000, 8 << 10, 20}} {
			for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				b.Run(fmt.Sprintf("progress=%v/%dx%d/%s", on, s.n, s.block, op), func(b *testing.B) {
					if testenv.Load().Backend == "UCX" && s.n >= 10_000 {
						s.runs = 5
					}
					measure(b, ini, op, mine, theirs, s.n, s.block, s.runs)
				})
			}
		}
		_ = ini.Close()
		_ = tgt.Close()
	}
}

// measure posts a transfer of n blocks, in a random order of each side, and reports the median times of the post and of
// the transfer. It posts it runs times in each iteration.
func measure(b *testing.B, ini *worker.Agent, op nixlapi.Op, mine, theirs *worker.Buf, n int, block uint64, runs int) {
	la := worker.Layout{Len: block, Stride: block, Count: n, Shuffle: 1}
	lb := worker.Layout{Len: block, Stride: block, Count: n, Shuffle: 2}
	x := ini.Xfer(worker.XferSpec{Op: op, Local: mine.At(la), Remote: theirs.At(lb), Peer: "bob"})
	x.Do(long)
	var post, lat []int64
	for b.Loop() {
		l := x.Loop(worker.LoopArgs{N: runs, Timeout: long, Times: true})
		post, lat = append(post, l.Post...), append(lat, l.Lat...)
	}
	b.ReportMetric(median(post)/1e3, "us-post")
	b.ReportMetric(median(lat)/1e3, "us-transfer")
	b.ReportMetric(float64(n)*float64(block)/median(lat), "GB/s")
	_ = x.Release()
}

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

// BenchmarkGivenBack lends GPU memory of an owner to importers, and prints what they still hold two seconds after each event that gives
// it back, and after each importer has removed the owner. 20 GiB, or GORAIL_TEST_LENT bytes; one importer, or GORAIL_TEST_IMPORTERS.
// What is held is what the owner's GPU lacks, so nothing else may use it. Contexts are in it, and on a machine with one GPU 64 MiB of each
// importer. With GORAIL_TEST_BACKEND=UCX it measures the wheel's plugin:
//
//	GORAIL_TEST_CUDA=libcuda.so.1 go test ./test/e2e -run NONE -bench GivenBack -benchtime 1x
func BenchmarkGivenBack(b *testing.B) {
	path := os.Getenv("GORAIL_TEST_CUDA")
	if path == "" {
		b.Skip("needs GPUs: GORAIL_TEST_CUDA=libcuda.so.1")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	gpu := worker.OnMachine(1)
	app := cuda.NewApp(b, path)
	number := func(name string, or uint64) uint64 {
		if n, err := strconv.ParseUint(os.Getenv(name), 0, 64); err == nil {
			return n
		}
		return or
	}
	size, importers := number("GORAIL_TEST_LENT", 20<<30)&^(4*cuda.Granule-1), int(number("GORAIL_TEST_IMPORTERS", 1))
	for kind, m := range map[string]worker.GPUMem{"cudaMalloc": device(1), "VMM": {Device: 1, Handles: 2}} {
		for _, event := range []string{"exit", "kill", "deregistration and free", "unmap"} {
			b.Run(kind+"/"+event, func(b *testing.B) {
				for range b.N {
					givenBack(b, lent{app, gpu, size, app.Left(gpu)}, m, event, importers)
				}
			})
		}
	}
}

// lent is memory of a GPU that has a known amount of free memory before.
type lent struct {
	*cuda.App
	gpu          int
	size, before uint64
}

// held is what the GPU lacks of the lent memory, in GiB. Contexts and buffers of processes that still live are below a GiB each.
func (l *lent) held() float64 { return float64(int64(l.before-l.Left(l.gpu))) / (1 << 30) }

func givenBack(b *testing.B, l lent, m worker.GPUMem, event string, importers int) {
	o := gpuHost(b)
	owner := agent(process(b, o), o.Env, "bob")
	buf := owner.AllocGPU(l.size, m)
	require.NoError(b, owner.Register(buf.All()))
	var all []*worker.Agent
	for i := range importers {
		a := agent(process(b, o), o.Env, fmt.Sprint("alice", i))
		const part = 64 << 20
		mine := a.GPUBuffer(part, seedA, device(0))
		a.Learn(owner)
		a.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: mine.All(), Remote: buf.Span(l.size-part, part), Peer: "bob"}).Do(long)
		all = append(all, a)
	}
	report := func(when string) {
		b.Logf("%-50s held: %.2f GiB", when, l.held())
	}
	report("lent")
	switch event {
	case "exit":
		require.NoError(b, owner.Exit())
	case "kill":
		owner.Kill()
	case "deregistration and free":
		require.NoError(b, owner.Deregister(buf.All()))
		buf.Unmap()
	case "unmap":
		buf.Unmap()
	}
	time.Sleep(2 * time.Second)
	b.ReportMetric(l.held(), "GiB-held")
	report("2 s after " + event)
	for _, a := range all {
		if a.Knows("bob") {
			_ = a.Invalidate("bob")
		}
		time.Sleep(2 * time.Second)
		report("2 s after " + a.Name + " has removed the owner")
	}
	for _, a := range all {
		_ = a.Exit()
		report("after " + a.Name + " has ended")
	}
}
