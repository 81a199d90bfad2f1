package gpu_test

import (
	"bytes"
	"math/rand"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/test/cuda"
)

const (
	window  = 256 << 10 // of the destination of one layout
	windows = 32        // in a batch, which is compared as a whole
	batch   = windows * window
)

// layout makes the operations of one window. Sizes go from 0 to the whole window. Source and destination differ by a multiple
// of `apart` and of no larger power of two. The kernel distinguishes 16, 8, 4 and 1. want is the expected destination.
func layout(rnd *rand.Rand, at, apart uint64, from, want []byte) (ops []gpu.Op, src []uint64) {
	n := uint64(1 + rnd.Intn(8))
	if rnd.Intn(2) == 0 {
		n = uint64(1 + rnd.Intn(500)) // above 128, the kernel reads them from pinned memory
	}
	for end := at + window; n > 0 && at < end; n-- {
		at += uint64(rnd.Intn(40))
		most := min((end-min(at, end))/n*2, end-min(at, end))
		size := uint64(rnd.Int63n(int64(most) + 1))
		switch rnd.Intn(8) {
		case 0:
			size = min(size, uint64(rnd.Intn(40)))
		case 1:
			size &^= 15
		}
		s := uint64(rnd.Int63n(int64(len(from)) - int64(size) - 32))
		s += (at - s) % 16 // equal modulo 16, then shifted by apart
		if apart < 16 {
			s += apart
		}
		copy(want[at:at+size], from[s:])
		ops = append(ops, gpu.Op{Len: size, Local: at})
		src = append(src, s)
		at += size
	}
	return ops, src
}

// pinned returns host memory for CPU access. The driver's copies are not used for it.
func pinned(at uint64, n int) []byte { return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n) }

func (r *rig) put(kind cuda.Kind, device int, at uint64, b []byte) {
	r.Helper()
	if kind == cuda.Host {
		copy(pinned(at, len(b)), b)
		return
	}
	r.app.Write(device, at, b)
}

func (r *rig) get(kind cuda.Kind, device int, at, n uint64) []byte {
	r.Helper()
	if kind == cuda.Host {
		return bytes.Clone(pinned(at, int(n)))
	}
	return r.app.Read(device, at, n)
}

// layouts makes random layouts on all paths, and compares the result with the CPU's.
func (r *rig) layouts(count int) {
	r.Helper()
	from, before := noise(1, batch), noise(2, batch)
	for i, way := range []struct {
		peer  int
		kind  cuda.Kind
		write bool
	}{{r.second(), cuda.Device, true}, {r.second(), cuda.Device, false}, {0, cuda.Device, true}, {gpu.ToHost, cuda.Host, true}, {gpu.ToHost, cuda.Host, false}} {
		rnd := rand.New(rand.NewSource(int64(i)))
		on := max(way.peer, 0)
		near, far := r.app.Alloc(0, cuda.Device, batch), r.app.Alloc(on, way.kind, batch)
		delta := uint64(0)
		if way.kind == cuda.Device {
			s, err := r.drv.Share(r.what(far, batch))
			require.NoError(r, err)
			m, _, err := r.drv.Map(s, 0)
			require.NoError(r, err)
			delta = m.At(far) - far
			defer func() { require.NoError(r, m.Close()) }()
		}
		to, toDevice, toKind, source, sourceDevice, sourceKind := far, on, way.kind, near, 0, cuda.Device
		if !way.write {
			to, toDevice, toKind, source, sourceDevice, sourceKind = near, 0, cuda.Device, far, on, way.kind
		}
		r.put(sourceKind, sourceDevice, source, from)
		l := r.stream(0, way.peer)
		jobs := []*gpu.Job{r.job(l), r.job(l), r.job(l), r.job(l)}
		for left := count / 5; left > 0; left -= windows {
			want, posted := bytes.Clone(before), [][]gpu.Op{}
			r.put(toKind, toDevice, to, before)
			for k := range min(left, windows) {
				apart := []uint64{16, 8, 4, 1}[k%4]
				list, src := layout(rnd, uint64(k)*window, apart, from, want)
				ops := r.drv.Ops(len(list))
				require.NotNil(r, ops)
				posted = append(posted, ops)
				for n, op := range list {
					ops[n] = gpu.Op{Local: source + src[n], Remote: to + op.Local, Len: op.Len}
					if !way.write {
						ops[n] = gpu.Op{Local: to + op.Local, Remote: source + src[n], Len: op.Len}
					}
				}
				j := jobs[k%len(jobs)]
				require.NoError(r, finish(r, j))
				require.NoError(r, j.Post(gpu.Work{Ops: ops, Write: way.write, Delta: delta, How: gpu.Kernel}))
			}
			for _, j := range jobs {
				require.NoError(r, finish(r, j))
			}
			for _, ops := range posted {
				r.drv.FreeOps(ops)
			}
			got := r.get(toKind, toDevice, to, batch)
			if !bytes.Equal(want, got) {
				for n := range got {
					require.Equal(r, want[n], got[n], "way %d, %d layouts before the end: byte %d of layout %d", i, left, n%window, n/window)
				}
			}
		}
		r.Cleanup(func() {
			r.app.Free(0, cuda.Device, near)
			r.app.Free(on, way.kind, far)
		})
	}
}

// TestLayouts: the kernel of the imitation.
func TestLayouts(t *testing.T) {
	r := open(t)
	r.lib.Set("late", 0)
	r.layouts(600)
	require.GreaterOrEqual(t, r.lib.Count("launches"), 600)
}

// TestRealLayouts: the real kernel, 10,000 layouts.
func TestRealLayouts(t *testing.T) {
	r := openReal(t)
	r.layouts(10000)
	require.GreaterOrEqual(t, r.drv.Counts().Launches, uint64(10000))
}
