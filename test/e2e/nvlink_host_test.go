package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/worker"
)

// egmMem is memory of the host that GPU 0 reaches, too (EGM), of so many handles: for NVLink between hosts, or for nobody.
func egmMem(handles int, fabric bool) worker.GPUMem {
	return worker.GPUMem{Handles: handles, Host: true, Fabric: fabric, Private: !fabric}
}

// TestNVLinkHostMemory: registered host memory with fabric handles moves over NVLink, to and from such memory and that of GPUs. Other host memory
// beside it goes by tcp, and so does host memory whose handles are for nobody.
func TestNVLinkHostMemory(t *testing.T) {
	t.Parallel()
	const size = 2 * cuda.Granule
	plain := worker.GPUMem{}
	egm, private := egmMem(2, true), egmMem(2, false)
	for name, c := range map[string]struct {
		here, there worker.GPUMem
		wire        bool
	}{
		"host and host":    {egm, egm, false},
		"GPU and host":     {device(0), egm, false},
		"host and GPU":     {egm, fabricMem(1, 2), false},
		"host and plain":   {egm, plain, true},
		"plain and host":   {plain, egm, true},
		"host and private": {egm, private, true},
		"private and host": {private, egm, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				r := newRack(t)
				ini, tgt := r.start("alice", tray{}), r.start("bob", tray{})
				make := func(a *worker.Agent, seed uint64, m worker.GPUMem) *worker.Buf {
					if m == plain && c.wire {
						return a.Buffer(size, seed)
					}
					return a.GPUBuffer(size, seed, m)
				}
				a, b := make(ini, seedA, c.here), make(tgt, seedB, c.there)
				side, other := ini.Buffer(4096, seedA), tgt.Buffer(4096, seedB) // beside them
				ini.Learn(tgt)
				over := func(la, lb *worker.Buf) (bytes uint64) { // a transfer made now
					la.Fill(seedA)
					lb.Fill(seedB)
					x, before := ini.Xfer(worker.XferSpec{Op: op, Local: la.All(), Remote: lb.All(), Peer: "bob", Notif: []byte("n")}), r.wire()
					x.Do(limit)
					require.Len(t, tgt.WaitNotifs(1, limit), 1)
					bytes = r.wire() - before
					require.NoError(t, x.Release())
					if op == nixlapi.Write {
						lb.Want(seedA)
					} else {
						la.Want(seedB)
					}
					return bytes
				}
				if c.wire {
					require.Greater(t, over(a, b), uint64(size))
					require.Greater(t, over(a, b), uint64(size))
					require.Zero(t, ini.GPUCount("imports"))
				} else {
					require.True(t, worker.Eventually(limit, func() bool { return over(a, b) < size/2 }), "bytes go over the wire\n%s", ini.Output())
					require.Positive(t, ini.GPUCount("imports"))
				}
				require.Greater(t, over(side, other), uint64(4096))
				require.NoError(t, tgt.Deregister(b.All()))
				require.Zero(t, ini.GPUCount("vmm_maps")-mapsOf(c.here), "memory of the peer is still mapped")
				require.NotContains(t, ini.Output()+tgt.Output(), "level=ERROR")
			})
		})
	}
}

// mapsOf is the number of handles that an application has mapped.
func mapsOf(m worker.GPUMem) int { return m.Handles }
