package kv

import (
	"time"

	"gorail/gorail/measure"
)

// clock is a comparison of another host's clock with ours.
type clock struct {
	at     time.Duration // by ours
	ahead  time.Duration // the other clock beyond ours
	within time.Duration // half of the round trip: ahead is wrong by as much at most
}

// asked is how often a clock is read: the shortest round trip counts.
const asked = 8

// compare reads another clock.
func compare(read func() (time.Duration, error)) (best clock, err error) {
	best.within = time.Hour
	for range asked {
		sent := measure.Now()
		theirs, err := read()
		if err != nil {
			return best, err
		}
		if half := (measure.Now() - sent) / 2; half < best.within {
			best = clock{sent + half, theirs - sent - half, half}
		}
	}
	return best, nil
}

// clocks are two comparisons. The zero value is that of a process with our clock.
type clocks [2]clock

// ours is the time of our clock when the other one shows t. Between the comparisons both clocks run evenly.
func (c clocks) ours(t time.Duration) time.Duration {
	a, b := c[0], c[1]
	ahead := float64(a.ahead)
	if span := b.at - a.at; span > 0 {
		ahead += float64(b.ahead-a.ahead) * float64(t-a.ahead-a.at) / float64(span)
	}
	return t - time.Duration(ahead)
}
