package mover

import (
	"time"

	"gorail/test/held"
	"gorail/test/history"
)

// never is longer than any test.
const never = 24 * time.Hour

// patience is how long a debt is looked after.
const patience = 10 * time.Second

// owed notes that peers have to give back memory: now it is nobody else's. Memory that is deregistered and stays is not watched: it is
// registered again soon.
func (a *mover) owed(files []uint64, what string) {
	if len(files) > 0 {
		now := time.Now()
		a.debts = append(a.debts, &debt{files: files, what: what, since: history.Now(), look: now.Add(a.Soon), until: now.Add(patience)})
	}
}

// remind looks who holds what was to be given back.
func (a *mover) remind(now time.Time) {
	var left []*debt
	for _, d := range a.debts {
		if now.After(d.look) {
			d.look = now.Add(500 * time.Millisecond)
			rest := false
			for _, p := range a.peers {
				if n, err := held.By(p.Pid, d.files...); err == nil && n > 0 {
					rest = true
					a.Note(history.Event{Kind: history.Held, To: p.Engine, Wrong: int64(n), Since: d.since, Text: d.what})
				}
			}
			if !rest || now.After(d.until) {
				continue
			}
		}
		left = append(left, d)
	}
	a.debts = left
}
