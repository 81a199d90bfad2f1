package actor

import (
	"time"

	"gorail/internal/pattern"
	"gorail/nixlapi"
	"gorail/test/history"
)

func (a *actor) makeRegions() error {
	for i := range a.mem.regions {
		r := &region{index: i, initiator: a.Names[i/Groups], group: i % Groups}
		a.regions = append(a.regions, r)
		if r.initiator == a.Engine.Agent {
			continue
		}
		a.refill(r, 0)
		if err := a.register(r); err != nil {
			return err
		}
	}
	return nil
}

// refill gives the slots the bytes of a generation.
func (a *actor) refill(r *region, generation uint64) {
	for _, b := range a.mem.writes(r.index) {
		fill(b, remoteCanary)
	}
	for i, b := range a.mem.reads(r.index) {
		fill(b, readSeed(a.Engine, r.index, i, generation))
	}
}

// user is the life of the initiator that uses the region, as far as we know.
func (a *actor) user(r *region) history.Engine {
	e := history.Engine{Agent: r.initiator, Life: r.group}
	if p := a.peers[r.initiator]; p != nil {
		e.Life = p.engine.Life - (p.engine.Life+r.group)%Groups
	}
	return e
}

func (a *actor) register(r *region) error {
	return a.Call(history.Event{What: history.Register, To: a.user(r)}, func() error {
		return a.agent.Register(nixlapi.DRAM, []nixlapi.Desc{desc(a.mem.region(r.index))}, a.backend)
	})
}

// take deregisters a region, whatever is in flight, and gives it other bytes at once. putBack registers it again.
func (a *actor) take(r *region, hold time.Duration) {
	if r.held || r.broken || r.initiator == a.Engine.Agent {
		return
	}
	generation := a.mem.generation(r.index).Add(1)
	r.held, r.took = true, a.Next()
	if a.Call(history.Event{What: history.Deregister, To: a.user(r)}, func() error {
		return a.agent.Deregister(nixlapi.DRAM, []nixlapi.Desc{desc(a.mem.region(r.index))}, a.backend)
	}) != nil {
		r.broken = true
		return
	}
	for i, b := range a.mem.writes(r.index) {
		w := a.mem.latest(r.index, i)
		if seen := w.Load(); seen != 0 {
			life, n := unpack(seen)
			by := history.Engine{Agent: r.initiator, Life: life}
			a.Note(history.Event{Kind: history.Taken, To: by, Op: n, Wrong: wrong(b, writeSeed(by, n))})
			w.CompareAndSwap(seen, 0)
		}
	}
	a.refill(r, generation+1)
	r.until = time.Now().Add(hold)
}

// untouched looks whether a region that is held still has its bytes.
func (a *actor) untouched(r *region) {
	look := func(b []byte, seed uint64, where string) {
		if at := wrong(b, seed); at != 0 {
			a.Note(history.Event{Kind: history.Watched, Op: r.took, To: a.user(r), Place: history.Gone, Wrong: at, Text: where})
		}
	}
	for _, b := range a.mem.writes(r.index) {
		look(b, remoteCanary, "slot of WRITEs")
	}
	for i, b := range a.mem.reads(r.index) {
		look(b, readSeed(a.Engine, r.index, i, a.mem.generation(r.index).Load()+1), "slot of READs")
	}
}

// putBack registers a region again.
func (a *actor) putBack(r *region) {
	if !r.held || r.broken {
		return
	}
	a.untouched(r)
	if a.register(r) != nil {
		r.broken = true
		return
	}
	r.held = false
	a.mem.generation(r.index).Add(1)
}

// arriving reports whether a WRITE to the region has begun and not ended.
func (a *actor) arriving(r *region) bool {
	const look = 64
	for i, b := range a.mem.writes(r.index) {
		if w := a.mem.latest(r.index, i).Load(); w != 0 {
			life, n := unpack(w)
			s, end := writeSeed(history.Engine{Agent: r.initiator, Life: life}, n), len(b)-look
			if pattern.Diff(b[:look], s, 0) < 0 && pattern.Diff(b[end:], s, uint64(end)) >= 0 {
				return true
			}
		}
	}
	return false
}

// due takes back what a step asked for, and puts back what has been held for long enough.
func (a *actor) due(now time.Time) {
	for _, r := range a.regions {
		if !r.wanted.IsZero() && (now.After(r.wanted) || a.arriving(r)) {
			r.wanted = time.Time{}
			a.take(r, r.hold)
		}
		if r.held && !r.broken && now.After(r.until) {
			a.putBack(r)
		}
	}
}
