package pattern

import "math"

// Floats is a bit of seeds whose pattern is bfloat16 of a normal distribution, as tensors have. Positions and lengths are then even.
const Floats = 1 << 63

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

func diffFloats(b []byte, seed, pos uint64) int64 {
	var want [step]byte
	Fill(want[:len(b)], seed, pos)
	for i := range b {
		if b[i] != want[i] {
			return int64(i)
		}
	}
	return -1
}
