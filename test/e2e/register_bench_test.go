package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// BenchmarkRegister registers 1,000 regions of 1 MiB in one call, and GPU memory of 1,000 VMM handles as one region. It reports the
// times of the registration, of the metadata and its loading at the peer, of the first transfer of all, of the second one, and of the
// deregistration. GPU memory needs GORAIL_TEST_CUDA. GORAIL_TEST_BACKEND=UCX measures the wheel's plugin:
//
//	go test ./test/e2e -run NONE -bench Register -benchtime 3x
func BenchmarkRegister(b *testing.B) {
	const n, mib = 1000, 1 << 20
	for _, c := range []struct {
		name  string
		mem   *worker.GPUMem
		size  uint64
		whole bool
	}{{"host", nil, n * mib, false}, {"cudaMalloc", gpuMem(0), n * mib, false}, {"VMM", &worker.GPUMem{Handles: n}, n * 2 * mib, true}} {
		b.Run(fmt.Sprint(c.name, ",whole=", c.whole), func(b *testing.B) {
			o := worker.Options{Env: testenv.Need(b)}
			if c.mem != nil {
				if os.Getenv("GORAIL_TEST_CUDA") == "" {
					b.Skip("needs GPUs: GORAIL_TEST_CUDA=libcuda.so.1")
				}
				o = gpuHost(b)
			}
			ini, tgt := agent(process(b, o), o.Env, "alice"), agent(process(b, o), o.Env, "bob")
			tgt.Polling(true)
			alloc := func(w *worker.Worker) *worker.Buf {
				if c.mem == nil {
					return w.Alloc(c.size, hostmem.Anon)
				}
				return w.AllocGPU(c.size, *c.mem)
			}
			mine, theirs := alloc(ini.Worker), alloc(tgt.Worker)
			sides := func(m *worker.Buf) (all []worker.Side) {
				if c.whole {
					return []worker.Side{m.All()}
				}
				for i := range uint64(n) {
					all = append(all, m.Span(i*mib, mib))
				}
				return all
			}
			var s steps
			for b.Loop() {
				s.begin()
				require.NoError(b, tgt.Register(sides(theirs)...))
				s.end("1-register")
				require.NoError(b, ini.Register(sides(mine)...))
				s.end("2-register-initiator")
				ini.Learn(tgt)
				s.end("3-metadata")
				l := worker.Layout{Len: 64 << 10, Stride: mib, Count: n}
				x := ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: mine.At(l), Remote: theirs.At(l), Peer: "bob"})
				x.Do(long)
				s.end("4-first-transfer")
				x.Do(long)
				s.end("5-second-transfer")
				require.NoError(b, x.Release())
				require.NoError(b, ini.Invalidate("bob"))
				s.begin()
				require.NoError(b, tgt.Deregister(sides(theirs)...))
				s.end("6-deregister")
				require.NoError(b, ini.Deregister(sides(mine)...))
			}
			s.report(b)
			_ = ini.Close()
			_ = tgt.Close()
		})
	}
}
