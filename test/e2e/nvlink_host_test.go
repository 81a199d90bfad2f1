package e2e

import (
	"strings"
	"testing"
	"time"

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

// TestNVLinkHostRemapped: host memory with fabric handles is unmapped, and other such memory mapped at its address, while it is registered. A transfer that is
// posted afterwards moves the bytes that are there now. They go over other rails then, at
// once, and not after a failure on NVLink. Peers give the former memory back. Nobody tells the plugin.
func TestNVLinkHostRemapped(t *testing.T) {
	t.Parallel()
	const size = 2 * cuda.Granule
	for name, atTarget := range map[string]bool{"initiator": false, "target": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				r := newRack(t)
				ini, tgt := r.start("alice", tray{}), r.start("bob", tray{})
				a, b := ini.GPUBuffer(size, seedA, egmMem(2, true)), tgt.GPUBuffer(size, seedB, egmMem(2, true))
				ini.Learn(tgt)
				src, dst, moved := a, b, a
				if op == nixlapi.Read {
					src, dst = b, a
				}
				if atTarget {
					moved = b
				}
				spec := worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob"}
				seed := uint64(seedD)
				over := func(x *worker.Xfer) (bytes uint64) {
					seed++
					src.Fill(seed)
					dst.Fill(seedA)
					before := r.wire()
					x.Do(limit)
					dst.Want(seed)
					return r.wire() - before
				}
				fresh := func() uint64 { // a transfer made now
					x := ini.Xfer(spec)
					defer func() { require.NoError(t, x.Release()) }()
					return over(x)
				}
				direct := func() bool { return fresh() < size/2 }
				require.True(t, worker.Eventually(limit, direct), "bytes go over the wire\n%s", ini.Output())
				x := ini.Xfer(spec)
				require.Less(t, over(x), uint64(size/2))
				for _, handles := range []int{2, 1} {
					moved.Unmap()
					moved.Remap(handles)
					over(x)
					over(x)
					fresh()
				}
				errors := func() int { return strings.Count(ini.Output(), "link error") } // a line a second at most
				require.True(t, worker.Eventually(limit, func() bool {
					before := errors()
					for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); {
						over(x)
						fresh()
					}
					return errors() == before
				}), "each transfer fails on NVLink first\n%s\n%s", ini.Output(), tgt.Output())
				if atTarget {
					require.Zero(t, ini.GPUCount("vmm_maps")-mapsOf(egmMem(2, true)), "former memory is still mapped")
				}
				require.NoError(t, x.Release())
				require.NoError(t, tgt.Deregister(b.All()))
				require.NotContains(t, ini.Output()+tgt.Output(), "level=ERROR")
			})
		})
	}
}

// TestNVLinkHostTwoGPUs: one transfer of memory that GPU 0 alone may access and of memory that GPU 1 alone may access. No GPU copies all of it: an access that is
// not allowed would end the application's use of the GPU.
func TestNVLinkHostTwoGPUs(t *testing.T) {
	t.Parallel()
	const size = cuda.Granule
	eachOp(t, func(t *testing.T, op nixlapi.Op) {
		r := newRack(t)
		ini, tgt := r.start("alice", tray{}), r.start("bob", tray{})
		other := egmMem(1, true)
		other.Device = 1
		a, c, b := ini.GPUBuffer(size, seedA, egmMem(1, true)), ini.GPUBuffer(size, seedA, other), tgt.GPUBuffer(2*size, seedB, egmMem(1, true))
		ini.Learn(tgt)
		for range 3 {
			for _, l := range []*worker.Buf{a, c} { // each alone
				require.True(t, worker.Eventually(limit, func() bool {
					x, before := ini.Xfer(worker.XferSpec{Op: op, Local: l.All(), Remote: b.Span(0, size), Peer: "bob"}), r.wire()
					x.Do(limit)
					require.NoError(t, x.Release())
					return r.wire()-before < size/2
				}), ini.Output())
			}
			a.Fill(seedA)
			c.Fill(seedC)
			b.Fill(seedB)
			both := a.All()
			both.Also = []worker.Side{c.All()}
			x := ini.Xfer(worker.XferSpec{Op: op, Local: both, Remote: b.At(worker.Layout{Len: size, Stride: size, Count: 2}), Peer: "bob"})
			x.Do(limit)
			require.NoError(t, x.Release())
		}
	})
}
