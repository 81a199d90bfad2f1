// Package measure has the data of a benchmark: points, samples, times, ratios. It measures nothing itself.
package measure

import (
	"encoding/json"
	"fmt"
	"math"
)

// histBits gives the buckets per power of two: 1<<histBits. nixlapi/hist.h counts, this package reads.
const histBits = 6

// Times is a histogram of nanoseconds with a resolution of 1.6 %.
type Times struct {
	Sum, Max uint64
	N        []uint64
}

// lowest returns the smallest time of a bucket.
func lowest(bucket int) uint64 {
	if bucket < 2<<histBits {
		return uint64(bucket)
	}
	shift := bucket>>histBits - 1
	return uint64(bucket-shift<<histBits) << shift
}

// Add adds the counts of a histogram with the same layout.
func (t *Times) Add(o Times) {
	if t.N == nil {
		t.N = make([]uint64, len(o.N))
	}
	for i, n := range o.N {
		t.N[i] += n
	}
	t.Sum, t.Max = t.Sum+o.Sum, max(t.Max, o.Max)
}

// Count returns the number of times.
func (t *Times) Count() (n uint64) {
	for _, c := range t.N {
		n += c
	}
	return n
}

// Quantile returns the time in nanoseconds that a share q (0..1) of all times does not exceed: the middle of its
// bucket. It returns 0 without times.
func (t *Times) Quantile(q float64) float64 {
	want := uint64(math.Ceil(q * float64(t.Count())))
	if want == 0 {
		want = 1
	}
	for i, seen := 0, uint64(0); i < len(t.N); i++ {
		if seen += t.N[i]; seen >= want {
			low, next := lowest(i), lowest(i+1)
			return math.Min(float64(low)+float64(next-low-1)/2, float64(t.Max))
		}
	}
	return 0
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
	if short.Size > 0 && short.Size < 1<<16 {
		t.N = make([]uint64, short.Size)
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
