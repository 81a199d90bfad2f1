// Package pattern generates bytes from a seed and a position, and finds the first wrong byte.
package pattern

import "encoding/binary"

// step bounds the work of one call. A worker may hold two Go runtimes; a long loop without calls cannot be preempted
// there.
const step = 64 << 10

func word(seed, i uint64) uint64 {
	z := (seed+1)*0x9e3779b97f4a7c15 + i*0xbf58476d1ce4e5b9
	z = (z ^ z>>30) * 0x94d049bb133111eb
	return z ^ z>>27
}

func patternByte(seed, pos uint64) byte { return byte(word(seed, pos/8) >> (8 * (pos % 8))) }

// Fill writes the bytes [pos, pos+len(dst)) of seed's pattern.
func Fill(dst []byte, seed, pos uint64) {
	for len(dst) > 0 {
		n := min(step, len(dst))
		fillStep(dst[:n], seed, pos)
		dst, pos = dst[n:], pos+uint64(n)
	}
}

//go:noinline
func fillStep(dst []byte, seed, pos uint64) {
	for len(dst) > 0 && (pos%8 != 0 || len(dst) < 8) {
		dst[0] = patternByte(seed, pos)
		dst, pos = dst[1:], pos+1
	}
	for len(dst) >= 8 {
		binary.LittleEndian.PutUint64(dst, word(seed, pos/8))
		dst, pos = dst[8:], pos+8
	}
	for i := range dst {
		dst[i] = patternByte(seed, pos+uint64(i))
	}
}

// Diff returns the index of the first byte that differs from the pattern, or -1.
func Diff(b []byte, seed, pos uint64) int64 {
	for done := int64(0); len(b) > 0; {
		n := min(step, len(b))
		if d := diffStep(b[:n], seed, pos); d >= 0 {
			return done + d
		}
		b, pos, done = b[n:], pos+uint64(n), done+int64(n)
	}
	return -1
}

//go:noinline
func diffStep(b []byte, seed, pos uint64) int64 {
	for i := 0; i < len(b); {
		p := pos + uint64(i)
		if p%8 == 0 && len(b)-i >= 8 && binary.LittleEndian.Uint64(b[i:]) == word(seed, p/8) {
			i += 8
			continue
		}
		if b[i] != patternByte(seed, p) {
			return int64(i)
		}
		i++
	}
	return -1
}
