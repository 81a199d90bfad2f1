package failover

import (
	"time"

	"github.com/stretchr/testify/require"
)

// sample is the number of bytes that the rails had carried at a time.
type sample struct {
	at         time.Time
	works, all uint64 // the rails that the failure spares; both
}

// samples are in the order of their times.
type samples []sample

// sample reads the counters in a goroutine, twice a millisecond, so that it goes on while Rails.Fail works. stop ends that and returns
// the samples.
func (r *Runner) sample(sent func() (works, all uint64, err error)) (stop func() samples) {
	var list samples
	var err error
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for err == nil {
			var s sample
			s.works, s.all, err = sent()
			s.at = time.Now()
			list = append(list, s)
			select {
			case <-quit:
				return
			case <-time.After(500 * time.Microsecond):
			}
		}
	}()
	return func() samples {
		r.t.Helper()
		close(quit)
		<-done
		require.NoError(r.t, err)
		return list
	}
}

// around returns the longest time in which no rail carried anything before the failure, and in which no rail that works did from the
// failure to the end. rate is what the latter carried after the failure, without the gap, in MB/s.
func (l samples) around(failed, end time.Time) (before, gap time.Duration, rate float64) {
	split := 0
	for split < len(l) && !l[split].at.After(failed) {
		split++
	}
	var was, is movement
	for _, s := range l[:split] {
		was.note(s.at, s.all)
	}
	was.note(failed, was.bytes)
	after := l[max(0, split-1):]
	if len(after) == 0 {
		return was.longest, 0, 0
	}
	is.at, is.bytes = failed, after[0].works
	for _, s := range after[1:] {
		is.note(s.at, s.works)
	}
	is.note(end, is.bytes)
	return was.longest, is.longest, float64(after[len(after)-1].works-after[0].works) / (end.Sub(failed) - is.longest).Seconds() / 1e6
}

// movement finds the longest time in which a counter of bytes stood still.
type movement struct {
	at      time.Time // when it moved last
	bytes   uint64
	longest time.Duration
}

// note takes a sample. Less than 16 KiB are heartbeats and handshakes.
func (m *movement) note(now time.Time, n uint64) {
	if !m.at.IsZero() {
		m.longest = max(m.longest, now.Sub(m.at))
	}
	if m.at.IsZero() || n-m.bytes > 16<<10 {
		m.at, m.bytes = now, n
	}
}
