package topo

import (
	"cmp"
	"strings"

	"github.com/maruel/natural"
)

// Natural compares names the way people count: eth2 before eth10. The result is 0 only for equal strings.
func Natural(a, b string) int {
	return cmp.Or(cmp.Compare(natural.Compare(a, b), 0), strings.Compare(a, b))
}
