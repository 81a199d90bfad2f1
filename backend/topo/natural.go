package topo

import (
	"cmp"
	"strings"
)

// Natural compares names by the numbers in them: eth2 comes before eth10. The result is 0 only for equal strings.
func Natural(a, b string) int {
	for x, y := a, b; ; {
		p, q := digits(x), digits(y)
		if p > 0 && q > 0 {
			m, n := strings.TrimLeft(x[:p], "0"), strings.TrimLeft(y[:q], "0")
			if c := cmp.Or(cmp.Compare(len(m), len(n)), strings.Compare(m, n)); c != 0 {
				return c
			}
			x, y = x[p:], y[q:]
			continue
		}
		if x == "" || y == "" || x[0] != y[0] {
			return cmp.Or(strings.Compare(x, y), strings.Compare(a, b)) // 01 and 1 are the same number
		}
		x, y = x[1:], y[1:]
	}
}

// digits returns the number of leading digits of s.
func digits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}
