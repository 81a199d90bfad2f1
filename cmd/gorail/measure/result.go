package measure

import (
	"math"
	"slices"
	"time"
)

// Sample is what one pair of processes saw of one point.
type Sample struct {
	Subject string
	Repeat  int
	Point   Point
	Failed  string `json:",omitempty"` // why there is nothing else

	Done      uint64           // transfers, or notifications, that were timed
	Posted    uint64           // with those before the clock started
	Wall      time.Duration    // of the slowest thread
	Make      time.Duration    // to make a transfer's request
	Lat, Post Times            // of each transfer: until done, inside post
	CPU       [2]time.Duration // of all that was posted
	Verified  bool             // the bytes were compared
}

// Pair is what making a pair of processes took, and what it grew to; initiator first.
type Pair struct {
	Subject string
	Repeat  int
	Create  time.Duration // the first engine of the process, loading included
	Later   time.Duration // another one
	First   time.Duration // the first transfer, of 4 KiB
	Threads [2]int        // more than before the engine, at most
	MiB     [2]float64    // resident more than before the engine and beside the buffers, at most
	FDs     [2]int        // more than before the engine
}

// Run is a whole run, as it is written to JSON.
type Run struct {
	When     time.Time
	Command  string
	Machine  string
	Versions string
	Setup    string // what all points share: progress thread, sync mode, target
	Title    string
	Repeats  int
	Subjects []string // backends, the one to compare with last
	Limits   []string
	Samples  []Sample
	Pairs    []Pair
}

// GBps is 10^9 bytes a second.
func (s Sample) GBps() float64 {
	return float64(s.Done) * float64(s.Point.Bytes()) / 1e9 / s.Wall.Seconds()
}

// PerSecond is transfers, or notifications, a second.
func (s Sample) PerSecond() float64 { return float64(s.Done) / s.Wall.Seconds() }

// CPUPerGiB is seconds of CPU for each GiB, initiator and target.
func (s Sample) CPUPerGiB() (out [2]float64) {
	gib := float64(s.Posted) * float64(s.Point.Bytes()) / (1 << 30)
	return [2]float64{s.CPU[0].Seconds() / gib, s.CPU[1].Seconds() / gib}
}

// Cell is all that was measured of one subject at one point, over the repeats.
type Cell struct {
	Samples   []Sample // that did not fail, by repeat
	Lat, Post Times
	Failed    string // the last failure
}

// Cell collects it.
func (r *Run) Cell(subject string, p Point) (c Cell) {
	for _, s := range r.Samples {
		switch {
		case s.Subject != subject || s.Point != p:
		case s.Failed != "":
			c.Failed = s.Failed
		default:
			c.Samples = append(c.Samples, s)
			c.Lat.Add(s.Lat)
			c.Post.Add(s.Post)
		}
	}
	return c
}

// Median of what f says of the samples; NaN when there is none.
func (c Cell) Median(f func(Sample) float64) float64 {
	var v []float64
	for _, s := range c.Samples {
		v = append(v, f(s))
	}
	return Median(v)
}

// Points of the run in the order in which they were measured.
func (r *Run) Points() (out []Point) {
	for _, s := range r.Samples {
		if !slices.Contains(out, s.Point) {
			out = append(out, s.Point)
		}
	}
	return out
}

// Spread is a middle and what lies around it.
type Spread struct{ Median, Low, High float64 }

// Ratio compares two cells repeat by repeat, since only what ran side by side has met the same moods of a machine: the median of the
// ratios a/b and their least and greatest. NaN where no repeat has both.
func Ratio(a, b Cell, f func(Sample) float64) Spread {
	var v []float64
	for _, s := range a.Samples {
		for _, o := range b.Samples {
			if o.Repeat == s.Repeat {
				v = append(v, f(s)/f(o))
			}
		}
	}
	if len(v) == 0 {
		return Spread{math.NaN(), math.NaN(), math.NaN()}
	}
	return Spread{Median(v), slices.Min(v), slices.Max(v)}
}

// Median of values, which are left alone; NaN when there is none.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
