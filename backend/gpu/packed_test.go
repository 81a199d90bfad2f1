package gpu_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"testing"

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
