package result

import (
	"fmt"
	"math"

	"gorail/gorail/measure"
)

// String is the cell as people read it: three significant figures at least, and small whole numbers as they are.
func (c Cell) String() string {
	if c.Value == nil {
		return c.Text
	}
	switch v := *c.Value; {
	case v == math.Trunc(v) && math.Abs(v) < 1000:
		return fmt.Sprintf("%.0f", v)
	case v < 0:
		return "-" + measure.Num(-v)
	default:
		return measure.Num(v)
	}
}

// noise is the change below which two numbers count as equal: repeats of a study differ by as much.
const noise = 0.05

// Ratio says how two numbers compare, a to b: "1.95 x", "as much as" within the noise.
func Ratio(a, b float64) string {
	switch r := a / b; {
	case math.IsNaN(r) || math.IsInf(r, 0):
		return "not comparable with"
	case math.Abs(r-1) <= noise:
		return "as much as"
	default:
		return fmt.Sprintf("%s x", measure.Num(r))
	}
}
