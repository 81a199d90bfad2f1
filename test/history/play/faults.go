package play

import (
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/history"
	"gorail/test/history/actor"
)

// Note writes a fault to the history.
func (r *Round) Note(a *Role, kind history.Kind, text string) {
	require.NoError(r.T, r.Log.Add(history.Event{By: a.Engine, Kind: kind, Text: text}))
}

// Later ends a fault after some time: in Pause, or in Mend.
func (r *Round) Later(d time.Duration, f func()) {
	r.undo = append(r.undo, undo{time.Now().Add(d), f})
}

// Mend ends the faults that are due; zero: all.
func (r *Round) Mend(now time.Time) {
	var left []undo
	for _, u := range r.undo {
		if now.IsZero() || now.After(u.at) {
			u.do()
		} else {
			left = append(left, u)
		}
	}
	r.undo = left
}

// Pause waits, and ends faults meanwhile.
func (r *Round) Pause(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		r.Mend(time.Now())
	}
}

// Kill kills an agent and starts it again under the same name. The others take back the memory that it wrote to.
func (r *Round) Kill(i int, gap time.Duration) {
	old := r.Actors[i]
	old.killed = true
	old.Client.Kill()
	r.Note(old, history.Killed, "")
	if r.Others != nil {
		r.Others.Died(r, old)
	}
	r.Pause(gap)
	r.answered() // also: nobody writes for the life before any more
	for _, other := range r.Actors {
		if other != old && r.Others == nil {
			r.ask(other, "TakeBack", actor.TakeBack{Engine: old.Engine, Hold: 100 * time.Millisecond})
		}
	}
	r.start(i, old.Life+1)
	r.introduce(r.Actors[i])
}
