// Package pattern generates bytes from a seed and a position, and finds the first wrong byte.
package pattern

import "encoding/binary"

// step bounds the work of one call. A worker may hold two Go runtimes; a long loop without calls cannot be preempted
// there.
const step = 64 << 10

const factor = 0xbf58476d1ce4e5b9

// Multiples of factor, modulo 1<<64.
const (
	step2 = 2 * factor & (1<<64 - 1)
	step3 = 3 * factor & (1<<64 - 1)
	step4 = 4 * factor & (1<<64 - 1)
)

func product(seed, i uint64) uint64 { return (seed+1)*0x9e3779b97f4a7c15 + i*factor }

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0x94d049bb133111eb
	return z ^ z>>27
}

func patternByte(seed, pos uint64) byte { return byte(mix(product(seed, pos/8)) >> (8 * (pos % 8))) }

// Fill writes the bytes [pos, pos+len(dst)) of seed's pattern.
func Fill(dst []byte, seed, pos uint64) {
	for len(dst) > 0 {
		n := min(step, len(dst))
		fill := fillStep
		if isFloats(seed) {
			fill = fillFloats
		}
		fill(dst[:n], seed, pos)
		dst, pos = dst[n:], pos+uint64(n)
	}
}

//go:noinline
func fillStep(dst []byte, seed, pos uint64) {
	for len(dst) > 0 && (pos%8 != 0 || len(dst) < 8) {
		dst[0] = patternByte(seed, pos)
		dst, pos = dst[1:], pos+1
	}
	// The first product of word, as a sum: one multiplication less for each word.
	z := product(seed, pos/8)
	for ; len(dst) >= 32; dst, pos, z = dst[32:], pos+32, z+step4 {
		b := (*[32]byte)(dst)
		binary.LittleEndian.PutUint64(b[0:], mix(z))
		binary.LittleEndian.PutUint64(b[8:], mix(z+factor))
		binary.LittleEndian.PutUint64(b[16:], mix(z+step2))
		binary.LittleEndian.PutUint64(b[24:], mix(z+step3))
	}
	for ; len(dst) >= 8; dst, pos, z = dst[8:], pos+8, z+factor {
		binary.LittleEndian.PutUint64(dst, mix(z))
	}
	for i := range dst {
		dst[i] = patternByte(seed, pos+uint64(i))
	}
}

// Diff returns the index of the first byte that differs from the pattern, or -1.
func Diff(b []byte, seed, pos uint64) int64 {
	for done := int64(0); len(b) > 0; {
		n := min(step, len(b))
		diff := diffStep
		if isFloats(seed) {
			diff = diffFloats
		}
		if d := diff(b[:n], seed, pos); d >= 0 {
			return done + d
		}
		b, pos, done = b[n:], pos+uint64(n), done+int64(n)
	}
	return -1
}

//go:noinline
func diffStep(b []byte, seed, pos uint64) int64 {
	i := 0
	for ; i < len(b) && (pos+uint64(i))%8 != 0; i++ {
		if b[i] != patternByte(seed, pos+uint64(i)) {
			return int64(i)
		}
	}
	z := product(seed, (pos+uint64(i))/8)
	for ; len(b)-i >= 32; i, z = i+32, z+step4 {
		w := (*[32]byte)(b[i:])
		d := binary.LittleEndian.Uint64(w[0:]) ^ mix(z)
		d |= binary.LittleEndian.Uint64(w[8:]) ^ mix(z+factor)
		d |= binary.LittleEndian.Uint64(w[16:]) ^ mix(z+step2)
		d |= binary.LittleEndian.Uint64(w[24:]) ^ mix(z+step3)
		if d != 0 {
			break
		}
	}
	for ; len(b)-i >= 8 && binary.LittleEndian.Uint64(b[i:]) == mix(z); i, z = i+8, z+factor {
	}
	for ; i < len(b); i++ {
		if b[i] != patternByte(seed, pos+uint64(i)) {
			return int64(i)
		}
	}
	return -1
}
