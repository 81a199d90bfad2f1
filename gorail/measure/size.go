package measure

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseSize parses a number of bytes, or of K, M, G (KiB, MiB, GiB): powers of 1024.
func ParseSize(s string) (uint64, error) {
	digits := strings.TrimRight(s, "KMGiB")
	shift, ok := map[string]uint{"": 0, "K": 10, "M": 20, "G": 30, "KiB": 10, "MiB": 20, "GiB": 30}[s[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil || n<<shift>>shift != n {
		return 0, fmt.Errorf("%q is not a size; write bytes, or 4K, 64M, 1G", s)
	}
	return n << shift, nil
}

// SizeName formats a size with the largest unit that divides it.
func SizeName(n uint64) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		if shift := 30 - 10*i; n != 0 && n&(1<<shift-1) == 0 {
			return fmt.Sprintf("%d %s", n>>shift, unit)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// Thousands formats a number with commas.
func Thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Num formats a number with three significant digits.
func Num(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return ""
	case v == 0:
		return "0"
	case v >= 1000:
		return Thousands(int(math.Round(v)))
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.01:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// Size is a flag's value.
type Size uint64

func (s *Size) String() string { return strings.ReplaceAll(SizeName(uint64(*s)), " ", "") }
func (s *Size) Type() string   { return "size" }

// Set implements pflag.Value.
func (s *Size) Set(v string) error {
	n, err := ParseSize(v)
	*s = Size(n)
	return err
}
