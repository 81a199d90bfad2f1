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
	"gorail/test/worker"
)

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
