package pattern

import (
	"math"
	"os"
)

// Floats is a bit of seeds whose pattern is bfloat16 of a normal distribution, as tensors have. GORAIL_TEST_NUMBERS makes all patterns such:
// they can then be compressed.
const Floats = 1 << 63

var allFloats = os.Getenv("GORAIL_TEST_NUMBERS") != ""

func isFloats(seed uint64) bool { return seed&Floats != 0 || allFloats }

// exponents has, for each random byte, the exponent of a normal variable.
var exponents = func() (table [256]byte) {
	const top = 129 // of 4 to 8
	for i := range table {
		p, e := (float64(i)+0.5)/256, 0
		for ; e < 20 && math.Erf(math.Exp2(float64(2-e))/math.Sqrt2) > 1-p; e++ {
		}
		table[i] = byte(top - e)
	}
	return table
}()

// floats makes numbers of random bytes.
//
//go:noinline
func floats(b []byte) {
	for i := 0; i+1 < len(b); i += 2 {
		e := exponents[b[i+1]]
		b[i+1] = b[i]&0x80 | e>>1
		b[i] = b[i]&0x7f | e<<7
	}
}

// fillFloats is fillStep for numbers, which may be cut at both ends.
func fillFloats(dst []byte, seed, pos uint64) {
	var cut [2]byte
	if pos%2 != 0 {
		fillStep(cut[:], seed, pos-1)
		floats(cut[:])
		dst[0] = cut[1]
		dst, pos = dst[1:], pos+1
	}
	whole := len(dst) &^ 1
	fillStep(dst[:whole], seed, pos)
	floats(dst[:whole])
	if whole < len(dst) {
		fillStep(cut[:], seed, pos+uint64(whole))
		floats(cut[:])
		dst[whole] = cut[0]
	}
}

func diffFloats(b []byte, seed, pos uint64) int64 {
	var want [step]byte
	fillFloats(want[:len(b)], seed, pos)
	for i := range b {
		if b[i] != want[i] {
			return int64(i)
		}
	}
	return -1
}
