package actor

import (
	"time"

	"gorail/nixlapi"
	"gorail/test/history"
)

func (a *actor) newSide(what history.What) (*side, error) {
	s := &side{what: what}
	var err error
	if s.buf, err = nixlapi.Alloc(half()); err != nil {
		return nil, err
	}
	for i, b := range cut(s.buf.B) {
		fill(b, localCanary)
		s.slots = append(s.slots, &slot{side: s, index: i, local: b, here: localCanary, there: remoteCanary})
	}
	return s, a.enroll(s, history.Engine{})
}

// enroll registers local memory.
func (a *actor) enroll(s *side, to history.Engine) error {
	err := a.Call(history.Event{What: history.Register, To: to, Text: "local"}, func() error {
		return a.agent.Register(nixlapi.DRAM, []nixlapi.Desc{desc(s.buf.B)}, a.backend)
	})
	s.registered = err == nil
	return err
}

// changed reports memory that is not as it must be.
func (a *actor) changed(s *slot, place history.Place, at int64) {
	if at != 0 {
		a.Note(history.Event{Kind: history.Watched, Op: s.last.number, Place: place, Result: s.lastResult, Wrong: at})
	}
}

// verify looks at both places of a slot that nothing is in flight for, and reports whether it can be used.
func (a *actor) verify(p *peer, s *slot) bool {
	a.changed(s, history.Local, wrong(s.local, s.here))
	if s.what == history.Read {
		return p.mem.generation(p.region).Load()%2 == 0
	}
	g := p.mem.generation(p.region)
	before := g.Load()
	if before%2 != 0 {
		return false
	}
	if s.draining || s.there != remoteCanary {
		if before != s.generation { // the target has written over it
			s.draining, s.there = false, remoteCanary
		}
	}
	at := wrong(s.remote, s.there)
	if g.Load() != before {
		return false // for the next time
	}
	a.changed(s, history.Remote, at)
	if s.draining && at != 0 {
		fill(s.remote, s.there) // told once for each change
	}
	return !s.draining
}

// judge compares the bytes of a success, and says what both places must have from now on.
func (a *actor) judge(p *peer, s *slot, o *op, end *history.Event) {
	g := p.mem.generation(p.region)
	if s.what == history.Read {
		end.Wrong = a.readWrong(p, s, o)
		return
	}
	before := g.Load()
	end.Wrong = wrong(s.remote, writeSeed(a.Engine, o.number))
	after := g.Load()
	if end.Wrong != 0 && after != o.generation {
		end.Wrong, end.Unseen = 0, true
	}
	if s.there, s.generation = writeSeed(a.Engine, o.number), before; before != after || end.Wrong != 0 || end.Unseen {
		s.there = remoteCanary
		fill(s.remote, remoteCanary)
	}
}

// readWrong compares a READ with the generations that the region had meanwhile, and returns the smallest difference.
func (a *actor) readWrong(p *peer, s *slot, o *op) (at int64) {
	if o.taken {
		return o.wrong
	}
	for n := o.generation; n <= p.mem.generation(p.region).Load(); n += 2 {
		own := readSeed(p.engine, p.region, s.index, n)
		if at = wrong(s.local, own); at == 0 {
			s.here = own
			return 0
		}
	}
	return at
}

// leave leaves a slot alone for some time after an end without success, every other time.
func (a *actor) leave(s *slot) {
	if n := seed(a.Seed, a.Engine, s.last.number) % 1000; n < 500 {
		s.rest = time.Now().Add(time.Duration(n) * time.Millisecond)
	}
}

// clear writes canaries over both places.
func (s *slot) clear() {
	s.here = localCanary
	fill(s.local, localCanary)
	if s.what == history.Write {
		s.there = remoteCanary
		fill(s.remote, remoteCanary)
	}
}
