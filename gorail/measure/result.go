package measure

import (
	"math"
	"slices"
	"time"
)

// Sample is the result of one point with one pair of processes.
type Sample struct {
	Subject string
	Repeat  int
	Point   Point
	Failed  string `json:",omitempty"` // the error; the other results are then empty

	Done      uint64           // transfers, or notifications, that were timed
	Posted    uint64           // including those before the clock started
	Wall      time.Duration    // from the first thread's start to the last one's end
	Make      time.Duration    // to create one request
	Lat, Post Times            // of each transfer: until done, inside post
	Makes     Times            // of blocks: inside make_xfer_req, before each post
	CPU       [2]time.Duration // for all that was posted, of the initiators and of the targets
	Verified  bool             // the bytes were compared
	Busy      float64          `json:",omitempty"` // share of this host's cores that other programs used in its turn, if that disturbs
}

// Pair has the start times of a pair of processes.
type Pair struct {
	Subject string
	Repeat  int
	Create  time.Duration // the initiator's first engine, loading included
	First   time.Duration // the first transfer, of 4 KiB
}

// Run is a whole run, as written to JSON.
type Run struct {
	When     time.Time
	Command  string
	Machine  string
	Versions string
	GPUs     []string `json:",omitempty"` // of the processes, initiators first
	Setup    string   // settings that all points share: progress thread, sync mode, target
	Title    string
	Ended    string `json:",omitempty"` // why the run is incomplete
	Repeats  int
	Subjects []string // backends; the last is the one to compare with
	Limits   []string
	Samples  []Sample
	Pairs    []Pair
}

// GBps returns 10^9 bytes per second.
func (s Sample) GBps() float64 {
	return float64(s.Done) * float64(s.Point.Bytes()) / 1e9 / s.Wall.Seconds()
}

// PerSecond returns transfers, or notifications, per second.
func (s Sample) PerSecond() float64 { return float64(s.Done) / s.Wall.Seconds() }

// CPUPerGiB returns seconds of CPU per GiB, of initiator and target.
func (s Sample) CPUPerGiB() (out [2]float64) {
	gib := float64(s.Posted) * float64(s.Point.Bytes()) / (1 << 30)
	return [2]float64{s.CPU[0].Seconds() / gib, s.CPU[1].Seconds() / gib}
}

// Cell has all samples of one subject at one point.
type Cell struct {
	Samples   []Sample // successful samples, by repeat
	Lat, Post Times
	Makes     Times
	Failed    string  // the last failure
	Busy      float64 // the largest of the samples
}

// Cell collects the samples of a subject at a point.
func (r *Run) Cell(subject string, p Point) (c Cell) {
	for _, s := range r.Samples {
		switch {
		case s.Subject != subject || s.Point != p:
		case s.Failed != "":
			c.Failed = s.Failed
		default:
			c.Samples, c.Busy = append(c.Samples, s), max(c.Busy, s.Busy)
			c.Lat.Add(s.Lat)
			c.Post.Add(s.Post)
			c.Makes.Add(s.Makes)
		}
	}
	return c
}

// Median returns the median of f over the samples; NaN without samples.
func (c Cell) Median(f func(Sample) float64) float64 {
	var v []float64
	for _, s := range c.Samples {
		v = append(v, f(s))
	}
	return Median(v)
}

// Points returns the points of the run, in the order of measurement.
func (r *Run) Points() (out []Point) {
	for _, s := range r.Samples {
		if !slices.Contains(out, s.Point) {
			out = append(out, s.Point)
		}
	}
	return out
}

// Starts returns the medians of a subject's start times, in milliseconds.
func (r *Run) Starts(subject string) (create, first float64, ok bool) {
	var creates, firsts []float64
	for _, p := range r.Pairs {
		if p.Subject == subject {
			creates, firsts = append(creates, p.Create.Seconds()*1e3), append(firsts, p.First.Seconds()*1e3)
		}
	}
	return Median(creates), Median(firsts), len(firsts) > 0
}

// Spread is a median with its range.
type Spread struct{ Median, Low, High float64 }

// Ratio compares two cells repeat by repeat, since only samples of the same repeat met the same conditions of the
// machine. It returns the median, the minimum and the maximum of the ratios a/b. They are NaN if no repeat has both.
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

// Median returns the median of values; NaN without values. It does not modify v.
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
