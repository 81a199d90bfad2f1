package play

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/history"
)

// The ways in which a rail fails.
const (
	Down   = "link down" // an interface goes down at one end
	Error  = "error"     // the rail's connections end: completion errors
	Silent = "silence"   // packets are dropped, in one direction or in both; nobody gets an error
)

// Kinds are all ways in which a rail fails.
var Kinds = []string{Down, Error, Silent}

// wanted are the longest gaps that we want.
var wanted = map[string]time.Duration{Down: 50 * time.Millisecond, Error: 50 * time.Millisecond, Silent: time.Second}

// Rails are two rails, 0 and 1, between two agents.
type Rails interface {
	// Sent returns the bytes that each end of a rail has sent. Safe for concurrent use, also with Fail.
	Sent(rail int) ([2]uint64, error)
	// Fail lets a rail fail at a random end. began is immediately before the failure: Fail may take milliseconds before it and after it.
	// mend repairs the rail.
	Fail(kind string, rail int, rng *rand.Rand) (began time.Time, mend func())
}

// Gap is what one failure cost.
type Gap struct {
	Kind   string
	After  time.Duration // the longest time from the failure on in which no working rail carried a byte, one of the ways
	Before time.Duration // the same before the failure, of both rails
	Back   time.Duration // from the repair until both rails carry bytes both ways
}

// FailRail lets a rail fail while both carry bytes both ways, and waits until both do so again. The history must show that no transfer failed.
func (r *Round) FailRail(rails Rails, kind string, limit time.Duration) Gap {
	r.T.Helper()
	rail := r.Rng.IntN(2)
	r.both(rails, limit)
	stop := r.watch(rails)
	r.Pause(time.Duration(20+r.Rng.IntN(200)) * time.Millisecond)
	began, mend := rails.Fail(kind, rail, r.Rng)
	for _, a := range r.Actors {
		r.Note(a, history.Cut, fmt.Sprintf("rail %d: %s", rail, kind))
	}
	r.Pause(wanted[kind] + 250*time.Millisecond)
	end := time.Now()
	mend()
	for _, a := range r.Actors {
		r.Note(a, history.Mended, fmt.Sprint("rail ", rail))
	}
	mended := time.Now()
	r.both(rails, limit)
	back := time.Since(mended)
	spared := []int{1 - rail}
	if kind == Error { // the rail itself works, and is used again at once
		spared = []int{0, 1}
	}
	all := stop()
	return Gap{kind, all.standstill(began, end, spared...), all.standstill(all[0].at, began, 0, 1), back}
}

// both waits until both rails carry bytes both ways.
func (r *Round) both(rails Rails, limit time.Duration) {
	r.T.Helper()
	const enough = 256 << 10
	first, n := r.read(rails), [2][2]uint64{}
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		n = r.read(rails)
		if min(n[0][0]-first[0][0], n[0][1]-first[0][1], n[1][0]-first[1][0], n[1][1]-first[1][1]) >= enough {
			return
		}
	}
	require.Fail(r.T, "a rail that works carries nothing", "from %d to %d\n%s", first, n, r.outputs())
}

func (r *Round) read(rails Rails) (n [2][2]uint64) {
	r.T.Helper()
	for rail := range n {
		var err error
		n[rail], err = rails.Sent(rail)
		require.NoError(r.T, err)
	}
	return n
}

// sample is what both ends of each rail had sent at a time.
type sample struct {
	at   time.Time
	sent [2][2]uint64
}

// samples are in the order of their times.
type samples []sample

// watch reads the counters twice a millisecond, also while Fail works. stop ends that and returns the samples.
func (r *Round) watch(rails Rails) (stop func() samples) {
	list := samples{{time.Now(), r.read(rails)}}
	var err error
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for err == nil {
			var s sample
			for rail := range s.sent {
				var e error
				s.sent[rail], e = rails.Sent(rail)
				err = errors.Join(err, e)
			}
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
		r.T.Helper()
		close(quit)
		<-done
		require.NoError(r.T, err)
		return list
	}
}

// standstill returns the longest time between two moments in which these rails together carried nothing, one of the ways. Less than
// 16 KiB are heartbeats and acknowledgements.
func (l samples) standstill(from, to time.Time, rails ...int) (longest time.Duration) {
	for way := range 2 {
		at, bytes := from, uint64(0)
		for _, s := range l {
			var n uint64
			for _, rail := range rails {
				n += s.sent[rail][way]
			}
			if !s.at.After(from) {
				bytes = n
			} else if s.at.After(to) {
				break
			} else if n-bytes > 16<<10 {
				longest, at, bytes = max(longest, s.at.Sub(at)), s.at, n
			}
		}
		longest = max(longest, to.Sub(at))
	}
	return longest
}

// Table has a line for each way to fail. Times are in ms.
func Table(all []Gap) string {
	table := "\n| failure | failures | gap p50 ms | p90 | p99 | max | above the wanted | no failure: p50 | p99 | used again: p50 | max |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
	for _, kind := range Kinds {
		var after, before, back []time.Duration
		over := 0
		for _, g := range all {
			if g.Kind != kind {
				continue
			}
			after, before, back = append(after, g.After), append(before, g.Before), append(back, g.Back)
			if g.After > wanted[kind] {
				over++
			}
		}
		if len(after) == 0 {
			continue
		}
		slices.Sort(after)
		slices.Sort(before)
		slices.Sort(back)
		ms := func(list []time.Duration, percent int) string {
			return fmt.Sprintf("%.1f", float64(list[min(len(list)-1, len(list)*percent/100)])/1e6)
		}
		table += fmt.Sprintf("| %s | %d | %s | %s | %s | %s | %d of %v | %s | %s | %s | %s |\n", kind, len(after), ms(after, 50), ms(after, 90), ms(after, 99), ms(after, 100),
			over, wanted[kind], ms(before, 50), ms(before, 99), ms(back, 50), ms(back, 100))
	}
	return table
}
