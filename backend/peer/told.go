package peer

import (
	"sync"
	"time"

	"gorail/backend/wire"
)

// Told is what an initiator says of the bytes that it moves in a session. Nothing checks it: it is for counters alone.
type Told struct {
	wire.Moves                      // since the session began
	WrittenRate, ReadRate float64   // bytes per second, over the last toldEvery and more
	At                    time.Time // when it said so last; zero: it has not
}

// toldEvery is the shortest time that a rate is of: pings and their answers may follow each other at once.
const toldEvery = time.Second

// told takes what the initiator's pings and answers say. Safe for concurrent use.
type told struct {
	mu    sync.Mutex
	last  Told
	begin wire.Moves // the next rate counts from here
	since time.Time
}

func (t *told) take(now time.Time, m wire.Moves) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last.Moves, t.last.At = m, now
	if t.since.IsZero() {
		t.begin, t.since = m, now
	}
	if passed := now.Sub(t.since); passed >= toldEvery {
		t.last.WrittenRate = growth(t.begin.Written, m.Written) / passed.Seconds()
		t.last.ReadRate = growth(t.begin.Read, m.Read) / passed.Seconds()
		t.begin, t.since = m, now
	}
}

func (t *told) read() Told {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// growth is 0 for a count that fell: a link that was made anew counts from the start.
func growth(before, now uint64) float64 {
	if now < before {
		return 0
	}
	return float64(now - before)
}
