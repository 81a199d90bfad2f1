package week

import "math"

// trend is how a curve goes over the last two thirds of its samples.
type trend struct {
	mean  float64
	slope float64 // growth over the whole run, if it went on like that
	bound float64 // the slope lies within this, with 95 %
}

// tail is the part of a run that counts: caches and pools fill before it.
const tail = 2.0 / 3

// trendOf fits a line by least squares. A sample resembles the one before: the error grows by what neighbours share.
func trendOf(y []float64) (t trend) {
	all := float64(len(y))
	y = y[len(y)-int(math.Ceil(all*tail)):]
	n := float64(len(y))
	if n < 4 {
		return trend{bound: math.Inf(1)}
	}
	for _, v := range y {
		t.mean += v / n
	}
	middle, xx, xy := (n-1)/2, 0.0, 0.0
	for i, v := range y {
		d := float64(i) - middle
		xx += d * d
		xy += d * (v - t.mean)
	}
	per := xy / xx // a sample
	square, product, before := 0.0, 0.0, 0.0
	for i, v := range y {
		e := v - t.mean - per*(float64(i)-middle)
		square += e * e
		if i > 0 {
			product += e * before
		}
		before = e
	}
	t.slope = per * all // Student's 2.3 is for the 11 samples of a whole run
	if square > 0 {
		r := min(0.9, max(0, product/square))
		t.bound = 2.3 * math.Sqrt(square/(n-2)/xx*(1+r)/(1-r)) * all
	}
	return t
}

// Verdicts about a curve.
const (
	Flat    = "flat"      // it does not grow by more than the limit
	Grows   = "grows"     // it does
	Unclear = "not shown" // it scatters too much to tell
)

// verdict compares the growth over a whole run with a limit.
func (t trend) verdict(limit float64) string {
	switch {
	case t.slope+t.bound <= limit:
		return Flat
	case t.slope-t.bound > limit:
		return Grows
	}
	return Unclear
}
