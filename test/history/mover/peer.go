package mover

import (
	"errors"
	"math/rand/v2"
	"time"

	"gorail/nixlapi"
	"gorail/test/history"
)

// meet takes a peer's metadata: of a peer that is new, or of its next life.
func (a *mover) meet(in Load) error {
	p := a.peers[in.Engine.Agent]
	if p == nil {
		p = &peer{number: a.number(in.Engine.Agent)}
		for piece := range in.Pieces {
			for _, what := range []history.What{history.Write, history.Read} {
				p.lanes = append(p.lanes, &lane{piece: piece, what: what, place: (p.number*len(kinds)+piece)*2 + len(p.lanes)%2})
			}
		}
		a.peers[in.Engine.Agent] = p
	} else {
		a.forget(p)
		if err := p.board.Close(); err != nil {
			return err
		}
	}
	var err error
	if p.board, err = OpenBoard(in.Board); err != nil {
		return err
	}
	p.Load = in
	for _, l := range p.lanes { // an earlier life of ours may have been killed in the middle of transfers
		a.busyAt(p, l).Store(0)
	}
	for _, l := range p.lanes {
		l.idle = time.Now().Add(drain)
		a.busyAt(p, l).Add(1)
	}
	return a.load(p)
}

// forget removes a peer, whatever is in flight.
func (a *mover) forget(p *peer) {
	if a.agent.Knows(p.Engine.Agent) {
		_ = a.Call(history.Event{What: history.Invalidate, To: p.Engine}, func() error { return a.agent.Invalidate(p.Engine.Agent) })
	}
	p.known = false
	for _, l := range p.lanes {
		if l.op != nil {
			if st := l.req.Status(); st != nixlapi.InProgress {
				a.finish(p, l, st)
			} else {
				a.release(p, l)
			}
		}
		a.drop(p, l)
	}
}

func (a *mover) load(p *peer) error {
	err := a.Call(history.Event{What: history.Load, To: p.Engine}, func() error {
		name, err := a.agent.Load(p.Blob)
		if err == nil && name != p.Engine.Agent {
			err = errors.New("metadata of " + name)
		}
		return err
	})
	p.known = err == nil
	return err
}

// reload removes a living peer and loads it again, some times, and uses it at once.
func (a *mover) reload(p *peer, times int, rng *rand.Rand) {
	for range times {
		a.forget(p)
		if a.load(p) != nil {
			a.wait(p)
			return
		}
	}
	for i := range rng.IntN(len(p.lanes)) {
		a.post(p, p.lanes[i], rng)
	}
}
