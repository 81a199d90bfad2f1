package gpu_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/backend/provider/tcp/sock"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

const block = sock.PackBlock

// contents are bytes as applications have them.
var contents = map[string]func(n int) []byte{
	"bfloat16": func(n int) []byte { return floats(n) },
	"float32": func(n int) []byte { // a normal variable's upper half, and noise
		b := noise(5, uint64(n))
		for i, from := 0, floats(n); i+3 < n; i += 4 {
			copy(b[i+2:i+4], from[i+2:])
		}
		return b
	},
	"zeros":  func(n int) []byte { return make([]byte, n) },
	"random": func(n int) []byte { return noise(6, uint64(n)) },
	"mixed": func(n int) []byte { // a plain block, numbers, zeros
		b := floats(n)
		copy(b, noise(7, uint64(min(n, block))))
		if n > 3*block {
			clear(b[2*block : 3*block])
		}
		return b
	},
}

func floats(n int) []byte {
	b := make([]byte, n)
	pattern.Fill(b, 3|pattern.Floats, 0)
	return b
}

// packer is memory for packing on GPU 0.
type packer struct {
	*rig
	stream   *gpu.Stream
	job      *gpu.Job
	at, slot uint64
}

const packRoom = 4 * mib

func (r *rig) packer() *packer {
	p := &packer{rig: r, stream: r.stream(0, gpu.ToHost)}
	require.NoError(r, p.stream.PackRoom(packRoom))
	var err error
	p.job, err = p.stream.Job()
	require.NoError(r, err)
	r.Cleanup(func() { _ = p.job.Free() })
	p.at, p.slot = r.alloc(0, cuda.Device, packRoom+mib), r.alloc(0, cuda.Host, packRoom+mib)
	return p
}

// pieces cuts [at, at+n) into pieces with gaps of so many bytes.
func (r *rig) pieces(at uint64, n, count, gap int) []gpu.Op {
	ops := r.drv.Ops(count)
	require.NotNil(r, ops)
	r.Cleanup(func() { r.drv.FreeOps(ops) })
	for i := range ops {
		size := n / (count - i)
		ops[i] = gpu.Op{Local: at, Len: uint64(size)}
		at += uint64(size + gap)
		n -= size
	}
	return ops
}

// write writes b to the pieces.
func (p *packer) write(ops []gpu.Op, b []byte) {
	for _, o := range ops {
		p.app.Write(0, o.Local, b[:o.Len])
		b = b[o.Len:]
	}
}

// pack packs the pieces into the slot, and returns its bytes.
func (p *packer) pack(ops []gpu.Op, n int) (chunk []byte, packed bool) {
	p.Helper()
	p.run(p.job, gpu.Work{Ops: ops, Pack: gpu.Packed, Slot: p.slot})
	size := p.job.Packed()
	packed = size > 0
	if !packed {
		size = uint64(n)
	}
	require.LessOrEqual(p, size, uint64(n))
	return p.get(cuda.Host, 0, p.slot, size), packed
}

// unpack puts a chunk into the slot, and unpacks it.
func (p *packer) unpack(ops []gpu.Op, chunk []byte) error {
	p.put(cuda.Host, 0, p.slot, chunk)
	if err := p.job.Post(gpu.Work{Ops: ops, Pack: gpu.Unpacked, Slot: p.slot, Packed: uint32(len(chunk))}); err != nil {
		return err
	}
	return finish(p, p.job)
}

func align(n int) int { return (n + 15) &^ 15 }

// decode is the codec of the processors.
func decode(chunk []byte, n int) ([]byte, error) {
	blocks := (n + block - 1) / block
	at, out := align(4*blocks), make([]byte, n)
	if len(chunk) < at {
		return nil, errors.New("no table")
	}
	var c sock.Packer
	for i := range blocks {
		size, text := int(binary.LittleEndian.Uint32(chunk[4*i:])), out[i*block:min(n, (i+1)*block)]
		if size < sock.PackHead || at+align(size) > len(chunk) || !c.Decode(text, chunk[at:at+size]) {
			return nil, fmt.Errorf("block %d of %d bytes at %d", i, size, at)
		}
		at += align(size)
	}
	if at != len(chunk) {
		return nil, fmt.Errorf("%d bytes behind the last block", len(chunk)-at)
	}
	return out, nil
}

// encode makes a packed chunk by the codec of the processors. The last block, if it is shorter, is plain.
func encode(text []byte) []byte {
	blocks := (len(text) + block - 1) / block
	chunk := make([]byte, align(4*blocks))
	var c sock.Packer
	for i := range blocks {
		from, to := text[i*block:min(len(text), (i+1)*block)], make([]byte, align(sock.PackHead+block))
		size := sock.PackHead + len(from)
		if len(from) == block {
			size = c.Encode(to, from)
			clear(to[size:])
		} else {
			copy(to[sock.PackHead:], from)
		}
		binary.LittleEndian.PutUint32(chunk[4*i:], uint32(size))
		chunk = append(chunk, to[:align(size)]...)
	}
	return chunk
}

// TestRealPack packs and unpacks chunks of many lengths, contents and pieces. What the GPU packs, the codec of the processors unpacks, and the
// other way round. Bytes beside the pieces stay as they were.
func TestRealPack(t *testing.T) {
	t.Run("imitation", func(t *testing.T) { packs(open(t).packer()) })
	t.Run("Real", func(t *testing.T) { packs(openReal(t).packer()) })
}

func packs(p *packer) {
	for name, make := range contents {
		for _, n := range []int{256 << 10, 256<<10 + 1, 5*block - 1, 300_003, mib, packRoom} {
			for _, c := range []struct{ pieces, gap, shift int }{{1, 0, 0}, {3, 5, 1}, {128, 16, 0}, {129, 1, 3}, {1000, 48, 16}} {
				what := fmt.Sprint(name, " ", n, " ", c)
				if p.lib != nil && n == packRoom && c.pieces != 1000 {
					continue // the imitation takes longer
				}
				in := make(n)
				ops := p.pieces(p.at+uint64(c.shift), n, c.pieces, c.gap)
				p.write(ops, in)
				chunk, packed := p.pack(ops, n)
				require.Equal(p, name != "random", packed, what)
				if !packed {
					pattern.Same(p, in, chunk, what)
				} else {
					out, err := decode(chunk, n)
					require.NoError(p, err, what)
					pattern.Same(p, in, out, what)
					require.LessOrEqual(p, len(chunk), n-n/33, what)
				}
				all := n + c.pieces*c.gap
				want := noise(9, uint64(all))
				for _, chunk := range [][]byte{encode(in), chunk} {
					if !packed && len(chunk) == n {
						continue
					}
					p.app.Write(0, p.at+uint64(c.shift), want)
					require.NoError(p, p.unpack(ops, chunk), what)
					put(want, ops, in)
					pattern.Same(p, want, p.app.Read(0, p.at+uint64(c.shift), uint64(all)), what)
				}
			}
		}
	}
}

// put writes b to the pieces of memory that begins with the first.
func put(memory []byte, ops []gpu.Op, b []byte) {
	for _, o := range ops {
		b = b[copy(memory[o.Local-ops[0].Local:][:o.Len], b):]
	}
}

// TestRealBadPack: what is no packed chunk ends with BadPack. Bytes beside the pieces stay, and the pieces get nothing that another job left.
func TestRealBadPack(t *testing.T) {
	t.Run("imitation", func(t *testing.T) { badPacks(open(t).packer(), 300) })
	t.Run("Real", func(t *testing.T) { badPacks(openReal(t).packer(), 3000) })
}

func badPacks(p *packer, rounds int) {
	const n, gap, count = 5*block - 77, 64, 20
	rnd := rand.New(rand.NewSource(1))
	good := encode(floats(n))
	ops := p.pieces(p.at, n, count, gap)
	secret := p.pieces(p.at+2*mib, 6*block, 1, 0)
	p.write(secret, noise(11, 6*block))
	for i := range rounds {
		chunk := spoil(rnd, good, i)
		_, err := decode(chunk, n)
		p.pack(secret, 6*block)
		before := noise(12, n+count*gap)
		p.app.Write(0, p.at, before)
		got := p.unpack(ops, chunk)
		if err == nil {
			require.NoError(p, got)
			continue
		}
		require.ErrorIs(p, got, gpu.BadPack, "round %d", i)
		after := p.app.Read(0, p.at, uint64(len(before)))
		for k, o := range ops {
			at := o.Local - p.at
			pattern.Same(p, before[at+o.Len:at+o.Len+gap], after[at+o.Len:at+o.Len+gap], "behind piece %d", k)
			noSecret(p, after[at:at+o.Len])
		}
	}
	require.NoError(p, p.unpack(ops, good))
}

// noSecret: none of the words of noise(11) is at its place, which is where the scratch had it.
func noSecret(p *packer, b []byte) {
	secret := secrets()
	for i := 0; i+8 <= len(b); i += 512 {
		require.False(p, secret[binary.LittleEndian.Uint64(b[i:])], "bytes of another job")
	}
}

var known map[uint64]bool

func secrets() map[uint64]bool {
	if known == nil {
		known = map[uint64]bool{}
		b := noise(11, 6*block)
		for i := range len(b) - 8 {
			known[binary.LittleEndian.Uint64(b[i:])] = true
		}
	}
	return known
}

// spoil returns a changed chunk: a length, a head, the chunk's length, or any byte.
func spoil(rnd *rand.Rand, good []byte, i int) []byte {
	b := append([]byte(nil), good...)
	blocks := 5
	switch i % 6 {
	case 0: // a length
		binary.LittleEndian.PutUint32(b[4*rnd.Intn(blocks):], rnd.Uint32()>>rnd.Intn(32))
	case 1: // shorter
		b = b[:16+16*rnd.Intn(len(b)/16-1)]
	case 2: // shorter than the table
		b = b[:1+rnd.Intn(15)]
	case 3: // a head
		at := align(4 * blocks)
		for range rnd.Intn(blocks) {
			at += align(int(binary.LittleEndian.Uint32(b[4*((at-32)/block%blocks):])))
		}
		b[min(at+rnd.Intn(8), len(b)-1)] ^= byte(1 + rnd.Intn(255))
	case 4: // noise
		rnd.Read(b)
	case 5: // too many exceptions
		b[align(4*blocks)+4] ^= byte(1 + rnd.Intn(255))
	}
	return b
}

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
