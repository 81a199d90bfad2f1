// Package measure has the data of a benchmark: points, samples, times, ratios. It measures nothing itself.
package measure

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// The layout of Times is that of an HDR histogram with these settings. nixlapi/hist.h counts in the same layout.
const (
	figures = 2           // significant figures: a resolution of 0.8 %
	Buckets = 40 << 7     // counts of a histogram
	longest = 256<<38 - 1 // ns, 19 hours
)

// Times is an HDR histogram of nanoseconds.
type Times struct {
	Sum, Max uint64
	N        []uint64 // Buckets counts; nil: no times
}

// HDR returns the histogram for the functions of package hdrhistogram. It is a copy.
func (t *Times) HDR() *hdr.Histogram {
	s := &hdr.Snapshot{LowestTrackableValue: 1, HighestTrackableValue: longest, SignificantFigures: figures, Counts: make([]int64, Buckets)}
	for i, n := range t.N {
		s.Counts[i] = int64(n)
	}
	return hdr.Import(s)
}

// Add adds the counts of a histogram.
func (t *Times) Add(o Times) {
	if t.N == nil && o.N != nil {
		t.N = make([]uint64, Buckets)
	}
	for i, n := range o.N {
		t.N[i] += n
	}
	t.Sum, t.Max = t.Sum+o.Sum, max(t.Max, o.Max)
}

// Record counts a time.
func (t *Times) Record(d time.Duration) {
	if t.N == nil {
		t.N = make([]uint64, Buckets)
	}
	v := uint64(max(0, d))
	shift := max(0, bits.Len64(v)-8)
	t.N[min(shift<<7+int(v>>shift), Buckets-1)]++
	t.Sum, t.Max = t.Sum+v, max(t.Max, v)
}

// Count returns the number of times.
func (t *Times) Count() (n uint64) {
	for _, c := range t.N {
		n += c
	}
	return n
}

// Quantile returns the time in nanoseconds that a share q (0..1) of all times does not exceed: the end of its bucket, or the
// longest time. It returns 0 without times.
func (t *Times) Quantile(q float64) float64 {
	if t.Count() == 0 {
		return 0
	}
	return min(float64(t.HDR().ValueAtPercentile(100*q)), float64(t.Max))
}

// Mean returns the mean in nanoseconds; 0 without times.
func (t *Times) Mean() float64 {
	if n := t.Count(); n > 0 {
		return float64(t.Sum) / float64(n)
	}
	return 0
}

// MarshalJSON writes only non-empty buckets.
func (t Times) MarshalJSON() ([]byte, error) {
	short := shortTimes{Sum: t.Sum, Max: t.Max, Size: len(t.N), N: map[int]uint64{}}
	for i, n := range t.N {
		if n > 0 {
			short.N[i] = n
		}
	}
	return json.Marshal(short)
}

// UnmarshalJSON reads the output of MarshalJSON.
func (t *Times) UnmarshalJSON(b []byte) error {
	var short shortTimes
	if err := json.Unmarshal(b, &short); err != nil {
		return err
	}
	*t = Times{Sum: short.Sum, Max: short.Max}
	switch short.Size {
	case 0:
	case Buckets:
		t.N = make([]uint64, Buckets)
	default:
		return fmt.Errorf("a histogram of %d buckets, not %d: another version of gorail wrote it; measure again", short.Size, Buckets)
	}
	for i, n := range short.N {
		if i < 0 || i >= len(t.N) {
			return fmt.Errorf("bucket %d of %d", i, len(t.N))
		}
		t.N[i] = n
	}
	return nil
}

type shortTimes struct {
	Sum, Max uint64
	Size     int
	N        map[int]uint64
}

// Now is the time of CLOCK_MONOTONIC, which all processes of a host share.
func Now() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}
