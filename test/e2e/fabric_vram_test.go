package e2e

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/fabric"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// TestFabricVRAM moves GPU memory between two processes over two imitated EFA or Slingshot rails: to VRAM of several
// handles and to host memory, whole buffers and scattered blocks. The imitation finds no breach of its rules.
func TestFabricVRAM(t *testing.T) {
	t.Parallel()
	ours(t)
	lib, driver := fabric.Build(t), cuda.Build(t).Path
	const size = 4 << 20
	handles := worker.GPUMem{Device: 1, Handles: 2}
	for _, kind := range []string{"efa", "cxi", "efa-direct"}[:rounds(2, 3)] {
		t.Run(kind, func(t *testing.T) {
			env, breaches := testenv.Need(t), filepath.Join(t.TempDir(), "breaches")
			set := append(fabric.Env(kind, 2, 1), "GORAIL_LIBFABRIC_PATH="+lib, fabric.EnvBreaches+"="+breaches, "GORAIL_CUDA_PATH="+driver,
				"GORAIL_FI_HMEM=on", "GORAIL_LOG=info") // the option is needed: an agent starts before its process uses GPUs
			one := func(name string) *worker.Agent {
				return agent(worker.Start(t, worker.Options{Env: env, Setenv: set}), env, name)
			}
			p := &pairOf{env: env, ini: one("alice"), tgt: one("bob")}
			p.tgt.Polling(true)
			move := func(op nixlapi.Op, a, b *worker.Buf) {
				t.Helper()
				la, lb := scattered(7, 4096, 100, 400, 1), scattered(9, 4096, 300, 400, 2)
				x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: "bob", Notif: []byte("here")})
				x.Do(limit)
				require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
				want(op, a, b, la, lb)
				require.NoError(t, x.Release())
				a.Fill(seedA)
				b.Fill(seedB)
				whole := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"})
				whole.Do(limit)
				require.NoError(t, whole.Release())
				if op == nixlapi.Write {
					b.Want(seedA)
				} else {
					a.Want(seedB)
				}
				a.Fill(seedA)
				b.Fill(seedB)
			}
			a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, handles)
			host := p.tgt.Buffer(size, seedB)
			p.ini.Learn(p.tgt)
			for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
				move(op, a, b)
				move(op, a, host)
			}
			for _, w := range []*worker.Agent{p.ini, p.tgt} {
				says(t, w.Worker, "memory of GPUs is registered on a rail", "how=dmabuf")
			}
			require.NoError(t, p.ini.Close())
			require.NoError(t, p.tgt.Close())
			a.Free()
			b.Free()
			gpuEmpty(t, p.ini, p.tgt)
			require.Empty(t, fabric.Breaches(t, breaches))
		})
	}
}
