package gpu_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

// TestPackSteps makes each call of a job with pack fail. Nothing is queued, or the job ends with the error once the stream has ended what is.
// The next job works, and the job that failed wrote nothing but its own memory.
func TestPackSteps(t *testing.T) {
	r := open(t)
	p := r.packer()
	const n = 300 << 10
	in := floats(n)
	ops := p.pieces(p.at, n, 7, 0)
	chunk := encode(in)
	defer r.lib.Set("hold", 0) // what is freed waits for streams
	for _, c := range []struct {
		pack  gpu.Pack
		call  string
		steps int
	}{{gpu.Packed, "LaunchKernel", 3}, {gpu.Unpacked, "MemsetD8Async", 1}, {gpu.Unpacked, "MemcpyAsync", 1}, {gpu.Unpacked, "LaunchKernel", 2},
		{gpu.Packed, "CtxPushCurrent", 1}, {gpu.Unpacked, "CtxPushCurrent", 1}} {
		for nth := 1; nth <= c.steps; nth++ {
			what := fmt.Sprint(c, nth)
			p.app.Write(0, p.at, in)
			p.put(cuda.Host, 0, p.slot, chunk)
			r.lib.Set("hold", 1)
			r.lib.Fail(c.call, nth, cuda.OutOfMemory)
			err := p.job.Post(gpu.Work{Ops: ops, Pack: c.pack, Slot: p.slot, Packed: uint32(len(chunk))})
			r.lib.Fail(c.call, 0, 0)
			first := nth == 1 && (c.call != "LaunchKernel" || c.pack == gpu.Packed) && c.call != "MemcpyAsync"
			if first {
				require.ErrorIs(t, err, gpu.NoMemory, what)
				require.NoError(t, p.job.Free(), what)
				p.job, err = p.stream.Job()
				require.NoError(t, err)
			} else {
				require.NoError(t, err, what)
				for range 200 {
					ended, err := p.job.Poll()
					require.NoError(t, err, what)
					require.False(t, ended, what)
				}
			}
			r.lib.Set("hold", 0)
			if !first {
				require.ErrorIs(t, finish(t, p.job), gpu.NoMemory, what)
			}
			pattern.Same(t, in, p.app.Read(0, p.at, n), what)
			got, packed := p.pack(ops, n)
			require.True(t, packed, what)
			p.app.Write(0, p.at, noise(1, n))
			require.NoError(t, p.unpack(ops, got), what)
			pattern.Same(t, in, p.app.Read(0, p.at, n), what)
		}
	}
}

// TestPackStepsBusy: a launch of a job fails. The job ends with what it has queued, and does not wait for the jobs behind it.
func TestPackStepsBusy(t *testing.T) {
	r := open(t)
	p := r.packer()
	const n = 300 << 10
	ops, many := p.pieces(p.at, n, 7, 0), p.pieces(p.at, n, 1000, 0)
	p.write(ops, floats(n))
	other, err := p.stream.Job()
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Free()) }()
	defer r.lib.Set("hold", 0)
	r.lib.Set("hold", 1)
	r.lib.Fail("LaunchKernel", 2, cuda.OutOfMemory)
	require.NoError(t, p.job.Post(gpu.Work{Ops: ops, Pack: gpu.Packed, Slot: p.slot}))
	r.lib.Fail("LaunchKernel", 0, 0)
	require.NoError(t, other.Post(gpu.Work{Ops: many, Pack: gpu.Packed, Slot: p.slot}))
	r.lib.Set("op", 100_000) // the other job takes 100 s
	r.lib.Set("hold", 0)
	require.ErrorIs(t, finish(t, p.job), gpu.NoMemory)
	ended, err := other.Poll()
	require.NoError(t, err)
	require.False(t, ended)
	r.lib.Set("op", 0)
	require.NoError(t, finish(t, other))
}

// TestPackCancel: a cancelled unpack stops before its last pieces; a pack ends as it is. The job can be posted again.
func TestPackCancel(t *testing.T) {
	p := open(t).packer()
	const n = 2000 * 1024
	in := floats(n)
	ops := p.pieces(p.at, n, 2000, 0)
	p.write(ops, in)
	chunk := encode(in)
	p.put(cuda.Host, 0, p.slot, chunk)
	last := ops[len(ops)-1]
	p.app.Write(0, p.at, make([]byte, n))
	p.lib.Set("op", 1000) // the copy would take two seconds
	require.NoError(t, p.job.Post(gpu.Work{Ops: ops, Pack: gpu.Unpacked, Slot: p.slot, Packed: uint32(len(chunk))}))
	require.ErrorIs(t, p.job.Post(gpu.Work{Ops: ops, Pack: gpu.Packed, Slot: p.slot}), gpu.Busy)
	require.ErrorIs(t, p.job.Free(), gpu.Busy)
	p.job.Cancel()
	require.ErrorIs(t, finish(t, p.job), gpu.Cancelled)
	require.Equal(t, make([]byte, last.Len), p.app.Read(0, last.Local, last.Len))
	p.lib.Set("op", 0)
	p.write(ops, in)
	require.NoError(t, p.job.Post(gpu.Work{Ops: ops, Pack: gpu.Packed, Slot: p.slot}))
	p.job.Cancel()
	if err := finish(t, p.job); err != nil {
		require.ErrorIs(t, err, gpu.Cancelled)
	}
	got, packed := p.pack(ops, n)
	require.True(t, packed)
	require.NoError(t, p.unpack(ops, got))
	pattern.Same(t, in, p.app.Read(0, p.at, n))
}

// TestPackLost: if CUDA ends, jobs with pack end with Lost.
func TestPackLost(t *testing.T) {
	for _, pack := range []gpu.Pack{gpu.Packed, gpu.Unpacked} {
		lib := cuda.Build(t)
		d, err := gpu.Open(lib.Path)
		require.NoError(t, err)
		app := cuda.NewApp(t, lib.Path)
		at, slot := app.Alloc(0, cuda.Device, mib), app.Alloc(0, cuda.Host, mib)
		l, err := d.Stream(0, gpu.ToHost)
		require.NoError(t, err)
		require.NoError(t, l.PackRoom(mib))
		j, err := l.Job()
		require.NoError(t, err)
		ops := d.Ops(1)
		ops[0] = gpu.Op{Local: at, Len: mib}
		w := gpu.Work{Ops: ops, Pack: pack, Slot: slot, Packed: mib / 2}
		lib.Set("hold", 1)
		require.NoError(t, j.Post(w))
		lib.Kill(cuda.IllegalAddress)
		require.ErrorIs(t, finish(t, j), gpu.Lost)
		require.ErrorIs(t, j.Post(w), gpu.Lost)
		require.NoError(t, j.Free())
		l.Close()
		require.NoError(t, d.Close())
	}
}

// TestPackRoom: a stream packs what it has room for. Room grows beside jobs in progress. What does not fit, and what is not aligned, is refused.
func TestPackRoom(t *testing.T) {
	r := open(t)
	l := r.stream(0, gpu.ToHost)
	j, ops := r.job(l), r.pieces(r.alloc(0, cuda.Device, 2*mib), 2*mib, 300, 0)
	slot := r.alloc(0, cuda.Host, 2*mib)
	w := gpu.Work{Ops: ops, Pack: gpu.Packed, Slot: slot}
	require.ErrorIs(t, j.Post(w), gpu.NoPack)
	require.NoError(t, l.PackRoom(mib))
	require.ErrorIs(t, j.Post(w), gpu.NoPack)
	k, half := r.job(l), ops[:100]
	defer r.lib.Set("hold", 0)
	r.lib.Set("hold", 1)
	require.NoError(t, k.Post(gpu.Work{Ops: half, Pack: gpu.Packed, Slot: slot}))
	require.NoError(t, l.PackRoom(2*mib))
	mems := r.lib.Count("mems")
	require.NoError(t, l.PackRoom(2*mib))
	require.Equal(t, mems, r.lib.Count("mems"))
	w.Slot++
	require.ErrorIs(t, j.Post(w), gpu.NoPack)
	w.Slot--
	for _, n := range []uint32{0, 3 * mib} {
		require.ErrorIs(t, j.Post(gpu.Work{Ops: half, Pack: gpu.Unpacked, Slot: slot, Packed: n}), gpu.BadPack)
	}
	at := r.alloc(0, cuda.Host, mib)
	far := unsafe.Slice(*(**gpu.Op)(unsafe.Pointer(&at)), len(ops))
	copy(far, ops)
	require.ErrorIs(t, j.Post(gpu.Work{Ops: far, Pack: gpu.Packed, Slot: slot}), gpu.NoPack, "not in the arena")
	r.lib.Set("hold", 0)
	require.NoError(t, finish(t, k))
	r.run(j, w)
	require.NotZero(t, j.Packed())
	r.run(j, gpu.Work{Ops: ops, Delta: r.alloc(0, cuda.Device, 16*mib) - ops[0].Remote, Write: true}) // nothing is left of it in a plain copy
	require.Zero(t, j.Packed())
	for _, n := range []uint64{0, 2 << 30} {
		require.ErrorIs(t, l.PackRoom(n), gpu.NoPack)
	}
}

// TestNoPack: a driver that cannot translate the kernels, or has no memory, copies without them.
func TestNoPack(t *testing.T) {
	for name, c := range map[string]struct {
		call   string
		result int
		why    gpu.Why
	}{"no JIT": {"ModuleLoadDataEx", cuda.NoJIT, gpu.NoPack}, "no function": {"ModuleGetFunction", 500, gpu.NoPack},
		"kernel memory": {"ModuleLoadDataEx", cuda.OutOfMemory, gpu.NoMemory}, "memory": {"MemAlloc", cuda.OutOfMemory, gpu.NoMemory}} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			l := r.stream(0, gpu.ToHost)
			j := r.job(l)
			r.lib.Fail(c.call, 1, c.result)
			require.ErrorIs(t, l.PackRoom(mib), c.why)
			r.lib.Fail(c.call, 0, 0)
			at, slot := r.alloc(0, cuda.Device, mib), r.alloc(0, cuda.Host, mib)
			ops := r.pieces(at, mib, 4, 0)
			require.ErrorIs(t, j.Post(gpu.Work{Ops: ops, Pack: gpu.Packed, Slot: slot}), gpu.NoPack)
			require.NoError(t, l.PackRoom(mib), "later")
			r.run(j, gpu.Work{Ops: ops, Pack: gpu.Packed, Slot: slot})
		})
	}
	t.Run("no copy kernel", func(t *testing.T) {
		r := open(t)
		r.lib.Set("jit", cuda.JITOff)
		require.ErrorIs(t, r.stream(0, gpu.ToHost).PackRoom(mib), gpu.NoPack)
	})
}

// TestPackTogether: two users of a stream, as engines of one process are, pack and unpack at once over its scratch.
func TestPackTogether(t *testing.T) {
	r := open(t)
	r.lib.Set("late", 0)
	var users sync.WaitGroup
	for i := range 4 {
		p := r.packer()
		const n = 2*block + 100
		ops, in := p.pieces(p.at, n, 5, 0), floats(n)
		copy(in[block:], noise(int64(i), block))
		p.write(ops, in)
		want := encode(in)
		users.Go(func() {
			for range 400 {
				w := gpu.Work{Ops: ops, Pack: gpu.Packed, Slot: p.slot}
				if err := errors.Join(p.job.Post(w), poll(p.job)); err != nil || p.job.Packed() != uint64(len(want)) || !bytes.Equal(want, p.get(cuda.Host, 0, p.slot, uint64(len(want)))) {
					t.Errorf("user %d: another chunk: %v", i, err)
					return
				}
				w.Pack, w.Packed = gpu.Unpacked, uint32(len(want))
				if err := errors.Join(p.job.Post(w), poll(p.job)); err != nil {
					t.Errorf("user %d: %v", i, err)
					return
				}
			}
			pattern.Same(t, in, p.app.Read(0, p.at, n))
		})
	}
	users.Wait()
}

func poll(j *gpu.Job) error {
	for {
		if ended, err := j.Poll(); ended {
			return err
		}
		runtime.Gosched()
	}
}
