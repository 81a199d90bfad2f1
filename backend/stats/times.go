package stats

import (
	"math/bits"
	"slices"
	"sync"
	"time"
)

// Times is a histogram of the times of transfers of a size class. Bucket i counts times below 2^i microseconds that
// bucket i-1 does not count. The last of TimeBuckets buckets counts all longer times. Buckets behind the last count are
// left out.
type Times struct {
	Most    uint64   `json:"up_to_bytes"` // 0: no limit
	Buckets []uint64 `json:"buckets"`
	Coarse  uint64   `json:"coarse"` // transfers whose time is not known to the microsecond: others shared the rail
}

// Numbers of buckets and of size classes. The core has the same.
const (
	TimeBuckets = 25
	TimeClasses = 5
)

var classes = [TimeClasses]uint64{4 << 10, 64 << 10, 1 << 20, 16 << 20, 0}

// TimeCounts are counts by class and bucket. The last count of a class is Coarse.
type TimeCounts [TimeClasses][TimeBuckets + 1]uint64

// Times makes histograms. Classes without counts are left out.
func (c *TimeCounts) Times() []Times {
	list := []Times{}
	for i, most := range classes {
		n := c[i][:TimeBuckets]
		for len(n) > 0 && n[len(n)-1] == 0 {
			n = n[:len(n)-1]
		}
		if coarse := c[i][TimeBuckets]; len(n) > 0 || coarse > 0 {
			list = append(list, Times{Most: most, Buckets: append([]uint64{}, n...), Coarse: coarse})
		}
	}
	return list
}

// Count is the number of transfers.
func (t Times) Count() (n uint64) {
	for _, b := range t.Buckets {
		n += b
	}
	return n + t.Coarse
}

// Quantile is an upper bound of the time that a share q (0 to 1) of the transfers took. Coarse ones do not count. 0: there
// are none.
func (t Times) Quantile(q float64) time.Duration {
	all := t.Count() - t.Coarse
	var below uint64
	for i, b := range t.Buckets {
		if below += b; b > 0 && float64(below) >= q*float64(all) {
			return time.Microsecond << i
		}
	}
	return 0
}

// Recorder counts times. The zero value is empty. Safe for concurrent use.
type Recorder struct {
	mu     sync.Mutex
	counts TimeCounts
}

// Add counts a transfer.
func (r *Recorder) Add(bytes uint64, took time.Duration) {
	class := slices.IndexFunc(classes[:], func(most uint64) bool { return most == 0 || bytes <= most })
	bucket := min(bits.Len64(uint64(max(took, 0).Microseconds())), TimeBuckets-1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[class][bucket]++
}

// Times returns the histograms.
func (r *Recorder) Times() []Times {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts.Times()
}
