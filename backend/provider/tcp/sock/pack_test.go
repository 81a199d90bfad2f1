package sock_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/provider/tcp/sock"
	"gorail/internal/pattern"
	"gorail/test/tcpmodel"
)

// packData makes texts by name.
var packData = map[string]func(rnd *rand.Rand, b []byte){
	"bf16": func(rnd *rand.Rand, b []byte) { fill16(b, func(int) uint16 { return bf16(rnd.NormFloat64()) }) },
	"fp16": func(rnd *rand.Rand, b []byte) { fill16(b, func(int) uint16 { return fp16(rnd.NormFloat64()) }) },
	"fp32": func(rnd *rand.Rand, b []byte) {
		fill32(b, func(int) uint32 { return math.Float32bits(float32(rnd.NormFloat64())) })
	},
	// Rows of 128 channels, each with a scale of its own, as keys of attention have.
	"kv": func(rnd *rand.Rand, b []byte) {
		var scale [128]float64
		for i := range scale {
			scale[i] = math.Exp(0.7 * rnd.NormFloat64())
		}
		fill16(b, func(i int) uint16 { return bf16(scale[i%128] * rnd.NormFloat64()) })
	},
	"e4m3": func(rnd *rand.Rand, b []byte) {
		for i := range b {
			b[i] = small(rnd.NormFloat64()*64, 3, 7)
		}
	},
	"e5m2": func(rnd *rand.Rand, b []byte) {
		for i := range b {
			b[i] = small(rnd.NormFloat64(), 2, 15)
		}
	},
	"sorted": func(_ *rand.Rand, b []byte) { fill32(b, func(i int) uint32 { return math.Float32bits(float32(i)) }) },
	"special": func(rnd *rand.Rand, b []byte) {
		values := []uint32{0, 1 << 31, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 1, 0x80000001, 0x007fffff, 0x00800000, 0x3f800000, 0xffffffff}
		fill32(b, func(int) uint32 { return values[rnd.IntN(len(values))] })
	},
	// A special value here and there, which is an exception.
	"holes": func(rnd *rand.Rand, b []byte) {
		values := []uint16{0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 1, 0x8001, 0x7f, 0xffff}
		fill16(b, func(int) uint16 {
			if rnd.IntN(50) == 0 {
				return values[rnd.IntN(len(values))]
			}
			return bf16(rnd.NormFloat64())
		})
	},
	"constant": func(rnd *rand.Rand, b []byte) { v := bf16(rnd.NormFloat64()); fill16(b, func(int) uint16 { return v }) },
	"zeros":    func(_ *rand.Rand, b []byte) { clear(b) },
	"padded": func(rnd *rand.Rand, b []byte) {
		clear(b)
		fill16(b[:len(b)/3], func(int) uint16 { return bf16(rnd.NormFloat64()) })
	},
	"text": func(_ *rand.Rand, b []byte) {
		copy(b, bytes.Repeat([]byte("The rail moves what the agent posts. "), len(b)/37+1))
	},
	"random": func(rnd *rand.Rand, b []byte) { pattern.Fill(b, rnd.Uint64(), 0) },
}

func packNames() []string {
	var names []string
	for name := range packData {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func fill16(b []byte, value func(i int) uint16) {
	for i := range (len(b) + 1) / 2 {
		var x [2]byte
		binary.LittleEndian.PutUint16(x[:], value(i))
		copy(b[2*i:], x[:])
	}
}

func fill32(b []byte, value func(i int) uint32) {
	for i := range (len(b) + 3) / 4 {
		var x [4]byte
		binary.LittleEndian.PutUint32(x[:], value(i))
		copy(b[4*i:], x[:])
	}
}

func bf16(x float64) uint16 { return uint16(math.Float32bits(float32(x)) >> 16) }

// fp16 cuts what does not fit, and has no denormals.
func fp16(x float64) uint16 {
	bits := math.Float32bits(float32(x))
	exponent := int(bits>>23&0xff) - 127 + 15
	if exponent <= 0 || exponent > 30 {
		return uint16(bits >> 31 << 15)
	}
	return uint16(bits>>31<<15) | uint16(exponent<<10) | uint16(bits>>13&0x3ff)
}

// small is a float of one byte.
func small(x float64, mantissa, bias int) byte {
	bits := math.Float32bits(float32(x))
	exponent := int(bits>>23&0xff) - 127 + bias
	if exponent <= 0 {
		return byte(bits >> 31 << 7)
	}
	return byte(bits>>31<<7) | byte(min(exponent<<mantissa|int(bits>>(23-mantissa))&(1<<mantissa-1), 0x7e))
}

// guarded is memory between pages that nobody may touch.
type guarded []byte

func newGuarded(t testing.TB) guarded {
	page := os.Getpagesize()
	size := (sock.PackHead + sock.PackBlock + page - 1) / page * page
	all, err := unix.Mmap(-1, 0, size+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	require.NoError(t, unix.Mprotect(all[:page], unix.PROT_NONE))
	require.NoError(t, unix.Mprotect(all[page+size:], unix.PROT_NONE))
	t.Cleanup(func() { require.NoError(t, unix.Munmap(all)) })
	return guarded(all[page : page+size])
}

// last is n bytes that end at the page, or some bytes before it.
func (g guarded) last(n int) []byte { return g[len(g)-n:][:n:n] }

var canaries = bytes.Repeat([]byte{0xa5}, 64)

// packer has the codec, and memory in which it cannot go too far.
type packer struct {
	t                 testing.TB
	p                 sock.Packer
	text, block, back guarded
}

func newPacker(t testing.TB) *packer {
	return &packer{t: t, text: newGuarded(t), block: newGuarded(t), back: newGuarded(t)}
}

// trip encodes and decodes, compares, and returns the block.
func (p *packer) trip(text []byte) []byte {
	from, to := p.text.last(len(text)), p.block.last(sock.PackHead+len(text))
	copy(from, text)
	n := p.p.Encode(to, from)
	require.LessOrEqual(p.t, n, sock.PackHead+len(text))
	require.Equal(p.t, n, sock.PackLength([sock.PackHead]byte(to), len(text)))
	block := bytes.Clone(to[:n])
	require.True(p.t, p.decode(block, len(text)))
	pattern.Same(p.t, text, p.back.last(len(text)), "what came back")
	return block
}

// decode decodes a block behind which there is no memory, to text behind which there is none. It returns whether that went well.
func (p *packer) decode(block []byte, n int) bool {
	from, to := p.block.last(len(block)), p.back.last(n)
	copy(from, block)
	before := p.back[max(0, len(p.back)-n-64) : len(p.back)-n]
	copy(before, canaries)
	ok := p.p.Decode(to, from)
	if !bytes.HasPrefix(canaries, before) {
		p.t.Fatal("bytes before the text were written")
	}
	if ok && len(block) != sock.PackLength([sock.PackHead]byte(block), n) {
		p.t.Fatalf("decoded %d bytes, for which the head has another length", len(block))
	}
	return ok
}

// TestPackRoundTrip: any text of any length comes back, whatever the block before it was.
func TestPackRoundTrip(t *testing.T) {
	t.Parallel()
	p, rnd := newPacker(t), rand.New(rand.NewPCG(1, 8))
	sizes := []int{511, 512, 513, 1023, 1024, 1025, 4000, 4096, 4097, 12345, 32768, 65521, 65535, 65536}
	for n := 1; n < 300; n++ {
		sizes = append(sizes, n)
	}
	for range 100 {
		sizes = append(sizes, 1+rnd.IntN(sock.PackBlock))
	}
	text := make([]byte, sock.PackBlock+3)
	for _, name := range packNames() {
		for _, n := range sizes {
			packData[name](rnd, text)
			p.trip(text[rnd.IntN(4):][:n])
		}
	}
}

// TestPackRatio has the least ratio for each kind of data. Others are decoded by a codec of Go beside ours.
func TestPackRatio(t *testing.T) {
	t.Parallel()
	p := newPacker(t)
	text := make([]byte, sock.PackBlock)
	for name, least := range map[string]float64{"bf16": 1.40, "fp16": 1.12, "fp32": 1.16, "kv": 1.32, "e4m3": 1.11, "e5m2": 1.27, "constant": 1.7,
		"zeros": 8000, "random": 0.9998, "text": 0.9998} {
		rnd := rand.New(rand.NewPCG(2, 8))
		p.p.Hint(0)
		blocks, length := 40, 0
		for range blocks {
			packData[name](rnd, text)
			block := p.trip(text)
			again, ok := tcpmodel.Unpack(block, len(text))
			require.True(t, ok)
			pattern.Same(t, text, again, "the model's codec")
			length += len(block)
		}
		ratio := float64(blocks*len(text)) / float64(length)
		t.Logf("%s %.3f", name, ratio)
		require.GreaterOrEqual(t, ratio, least, name)
	}
}

// TestPackExceptions has exceptions at each border of what the code looks at, alone, together, and more than are worth it.
func TestPackExceptions(t *testing.T) {
	t.Parallel()
	p, rnd := newPacker(t), rand.New(rand.NewPCG(3, 8))
	text := make([]byte, sock.PackBlock)
	for _, n := range []int{512, 520, 1040, 4096, 65520, 65536} {
		last := n/16*8 - 1
		for _, step := range []int{1, 2, 3, 63, 64, 65, last / 8, last / 4} {
			for _, first := range []int{0, 1, 7, 8, 31, 62, 63, 64, last - 1, last} {
				fill16(text[:n], func(i int) uint16 {
					if i >= first && (i-first)%step == 0 {
						return uint16(rnd.Uint32())
					}
					return 0x3f80 | uint16(rnd.IntN(128))
				})
				p.trip(text[:n])
			}
		}
	}
	plain, codes := 0, 0
	for share := range 1000 {
		fill16(text, func(int) uint16 {
			if rnd.IntN(1000) < share {
				return uint16(rnd.Uint32())
			}
			return 0x3f80 | uint16(rnd.IntN(128))
		})
		if p.trip(text)[0] == 0 {
			plain++
		} else {
			codes++
		}
	}
	require.Greater(t, plain, 100)
	require.Greater(t, codes, 100)
}

// TestPackHint: any hint gives right bytes, and a stream whose data change is soon as short as a new one.
func TestPackHint(t *testing.T) {
	t.Parallel()
	p, rnd := newPacker(t), rand.New(rand.NewPCG(4, 8))
	text := make([]byte, sock.PackBlock)
	names := packNames()
	for range 2000 {
		packData[names[rnd.IntN(len(names))]](rnd, text[:4096])
		hint := rnd.Uint64()
		if rnd.IntN(2) == 0 { // a form that there is
			hint = hint&^0xff00ff | uint64(1<<rnd.IntN(3)) | uint64(1+rnd.IntN(7))<<16
		}
		p.p.Hint(hint)
		p.trip(text[:1+rnd.IntN(4096)])
	}
	for _, before := range names {
		for _, after := range names {
			packData[before](rnd, text)
			p.p.Hint(0)
			for range 20 {
				p.trip(text)
			}
			packData[after](rnd, text)
			length := 0
			for range 17 { // LOOKS and one
				length = len(p.trip(text))
			}
			p.p.Hint(0)
			require.LessOrEqual(t, length, len(p.trip(text))*103/100, "%s after %s", after, before)
		}
	}
}

// TestPackHostile decodes blocks of which something is changed, cut or longer, between pages without memory. No length and no head makes the
// decoder leave them.
func TestPackHostile(t *testing.T) {
	t.Parallel()
	p, rnd := newPacker(t), rand.New(rand.NewPCG(5, 8))
	blocks := 10_000_000
	if testing.Short() {
		blocks = 200_000
	}
	names, text := packNames(), make([]byte, sock.PackBlock)
	decoded, refused := 0, 0
	var block []byte
	n := 0
	for i := range blocks {
		if i%64 == 0 {
			n = 1 + rnd.IntN([]int{600, 2000, 8000, sock.PackBlock}[min(rnd.IntN(40), 3)&rnd.IntN(4)])
			packData[names[rnd.IntN(len(names))]](rnd, text[:n])
			block = p.trip(text[:n])
		}
		bad, size := mutate(rnd, block, n)
		if p.decode(bad, size) {
			decoded++
		} else {
			refused++
		}
	}
	t.Logf("%d decoded, %d refused", decoded, refused)
	require.Greater(t, decoded, blocks/100)
	require.Greater(t, refused, blocks/100)
}

// mutate changes a block, mostly its head, or what the receiver takes it for.
func mutate(rnd *rand.Rand, block []byte, n int) (bad []byte, size int) {
	bad, size = bytes.Clone(block), n
	for range 1 + rnd.IntN(3) {
		switch rnd.IntN(8) {
		case 0, 1:
			bad[rnd.IntN(min(len(bad), sock.PackHead))] ^= 1 << rnd.IntN(8)
		case 2:
			bad[rnd.IntN(min(len(bad), sock.PackHead))] = byte(rnd.IntN(9))
		case 3:
			bad[rnd.IntN(len(bad))] = byte(rnd.Uint32())
		case 4:
			bad = bad[:rnd.IntN(len(bad))+1]
		case 5:
			bad = append(bad, byte(rnd.Uint32()))
		case 6:
			size = max(1, min(sock.PackBlock, size+rnd.IntN(33)-16))
		case 7: // a head of codes, and the bytes that it asks for
			copy(bad, []byte{2, 1 << rnd.IntN(3), byte(rnd.Uint32()), byte(1 + rnd.IntN(7)), byte(rnd.Uint32()), byte(rnd.IntN(3)), 0, 0})
			if len(bad) < sock.PackHead {
				continue
			}
			length := sock.PackLength([sock.PackHead]byte(bad), size)
			for len(bad) < length {
				bad = append(bad, byte(rnd.Uint32())|byte(-rnd.IntN(2)))
			}
			bad = bad[:max(length, sock.PackHead)]
		}
	}
	return bad[:min(len(bad), sock.PackHead+sock.PackBlock)], size
}

// TestPackHeads: no head makes a block longer than plain bytes, and a block of another length is refused.
func TestPackHeads(t *testing.T) {
	t.Parallel()
	p, rnd := newPacker(t), rand.New(rand.NewPCG(6, 8))
	valid := 0
	for range 300_000 {
		n := rnd.IntN(sock.PackBlock + 2)
		head := [sock.PackHead]byte{byte(rnd.IntN(4)), byte(rnd.IntN(6)), byte(rnd.Uint32()), byte(rnd.IntN(9)), byte(rnd.Uint32()), byte(rnd.IntN(200))}
		if rnd.IntN(4) == 0 {
			head = [sock.PackHead]byte{head[0]}
			head[rnd.IntN(sock.PackHead)] += byte(rnd.IntN(2))
		}
		length := sock.PackLength(head, n)
		if length == 0 {
			continue
		}
		valid++
		require.GreaterOrEqual(t, length, sock.PackHead)
		require.LessOrEqual(t, length, sock.PackHead+n)
		if valid%50 == 0 {
			block := append(head[:], make([]byte, length-sock.PackHead)...)
			require.False(t, p.decode(block[:length-1], n))
			require.False(t, length <= sock.PackBlock && p.decode(append(block, 0), n))
		}
	}
	require.Greater(t, valid, 10_000)
	for _, n := range []int{0, sock.PackBlock + 1} {
		require.Zero(t, sock.PackLength([sock.PackHead]byte{}, n))
	}
}

// FuzzPack: any text comes back, and no block makes the decoder leave its memory.
func FuzzPack(f *testing.F) {
	rnd := rand.New(rand.NewPCG(7, 8))
	text := make([]byte, 4096)
	var p sock.Packer
	for _, name := range packNames() {
		packData[name](rnd, text)
		block := make([]byte, sock.PackHead+len(text))
		f.Add(uint16(len(text)-1), text)
		f.Add(uint16(len(text)-1), block[:p.Encode(block, text)])
	}
	guard := newPacker(f)
	f.Fuzz(func(t *testing.T, n uint16, b []byte) {
		if guard.t = t; len(b) == 0 {
			return
		}
		b = b[:min(len(b), sock.PackBlock)]
		guard.trip(b)
		guard.decode(b, int(n)+1)
	})
}

// BenchmarkPack has the rate of text that is encoded and decoded, and that of memcpy beside it.
func BenchmarkPack(b *testing.B) {
	const blocks = 64
	for _, name := range []string{"bf16", "fp16", "fp32", "kv", "e4m3", "e5m2", "random", "zeros"} {
		text, block := make([]byte, blocks*sock.PackBlock), make([]byte, blocks*(sock.PackHead+sock.PackBlock))
		packData[name](rand.New(rand.NewPCG(9, 8)), text)
		var p sock.Packer
		var lengths [blocks]int
		at := func(i int) []byte { return block[i*(sock.PackHead+sock.PackBlock):][:sock.PackHead+sock.PackBlock] }
		part := func(i int) []byte { return text[i*sock.PackBlock:][:sock.PackBlock] }
		each := func(what string, do func(i int)) {
			b.Run(fmt.Sprintf("%s/%s", name, what), func(b *testing.B) {
				b.SetBytes(blocks * sock.PackBlock)
				for b.Loop() {
					for i := range blocks {
						do(i)
					}
				}
				if what == "encode" {
					sum := 0
					for _, n := range lengths {
						sum += n
					}
					b.ReportMetric(float64(len(text))/float64(sum), "ratio")
				}
			})
		}
		each("encode", func(i int) { lengths[i] = p.Encode(at(i), part(i)) })
		each("decode", func(i int) {
			if !p.Decode(part(i), at(i)[:lengths[i]]) {
				b.Fatal("refused")
			}
		})
		each("memcpy", func(i int) { copy(at(i), part(i)) })
	}
}
