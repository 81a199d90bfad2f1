package actor

import (
	"bytes"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"gorail/internal/pattern"
	"gorail/nixlapi"
	"gorail/test/history"
)

// meet takes a peer's metadata, of a new life or of one that we know.
func (a *actor) meet(in Load) error {
	p := a.peers[in.Engine.Agent]
	if p == nil {
		p = &peer{region: a.regionOf(a.Engine)}
		for i, what := range []history.What{history.Write, history.Read} {
			var err error
			if p.sides[i], err = a.newSide(what); err != nil {
				return err
			}
		}
		a.peers[in.Engine.Agent] = p
	}
	switch how := seed(a.Seed, a.Engine, in.Engine) % 3; {
	case p.mem == nil || how == 0:
		return a.replace(p, in)
	case how == 1: // release all
		a.releaseAll(p)
	}
	p.load, p.rest = &in, time.Now().Add(5*time.Second)
	return nil
}

func (a *actor) releaseAll(p *peer) {
	for _, side := range p.sides {
		for _, s := range side.slots {
			if s.op != nil {
				a.release(p, s)
			}
		}
	}
}

// forget removes a peer, whatever is in flight.
func (a *actor) forget(p *peer) {
	if a.agent.Knows(p.engine.Agent) {
		_ = a.Call(history.Event{What: history.Invalidate, To: p.engine}, func() error { return a.agent.Invalidate(p.engine.Agent) })
	}
	p.known = false
	for _, side := range p.sides {
		for _, s := range side.slots {
			if s.op == nil {
				a.drop(p, s)
			} else if st := s.req.Status(); st != nixlapi.InProgress {
				a.finish(p, s, st)
				a.drop(p, s)
			} else {
				a.release(p, s)
			}
		}
	}
}

// replace removes a peer and loads it, or its next life.
func (a *actor) replace(p *peer, in Load) error {
	p.load = nil
	if p.mem != nil {
		a.forget(p)
	}
	if in.Engine != p.engine {
		if err := a.enter(p, in); err != nil {
			return err
		}
	}
	p.rest = time.Time{}
	return a.reload(p)
}

func (a *actor) reload(p *peer) error {
	err := a.Call(history.Event{What: history.Load, To: p.engine}, func() error {
		_, err := a.agent.Load(p.blob)
		return err
	})
	p.known = err == nil
	return err
}

// enter maps the memory of a peer's new life.
func (a *actor) enter(p *peer, in Load) error {
	if p.mem != nil {
		if err := unix.Munmap(p.mem.b); err != nil {
			return err
		}
	}
	mem, err := mapArena(in.Arena, len(a.Names))
	if err != nil {
		return err
	}
	mem.moved = in.Base - desc(mem.b).Addr
	p.engine, p.blob, p.mem, p.notes = in.Engine, in.Blob, mem, 0
	for i, remote := range [][][]byte{mem.writes(p.region), mem.reads(p.region)} {
		for k, s := range p.sides[i].slots {
			s.remote, s.there, s.draining, s.generation = remote[k], remoteCanary, false, 0
		}
	}
	return nil
}

// late loads what waits until the transfers to an earlier life have ended.
func (a *actor) late(now time.Time) error {
	for _, p := range a.peers {
		if p.load != nil && (p.sides[0].idle() && p.sides[1].idle() || now.After(p.rest)) {
			if err := a.replace(p, *p.load); err != nil {
				return err
			}
		}
	}
	return nil
}

// tell sends a notification without a transfer.
func (a *actor) tell(p *peer, size int) {
	p.notes++
	n := p.notes
	if a.Call(history.Event{What: history.Notify, To: p.engine, Note: n}, func() error {
		return a.agent.GenNotif(p.engine.Agent, a.message(p, n, size), a.backend)
	}) != nil {
		a.wait(p)
	}
}

// hear takes in the notifications that have come.
func (a *actor) hear() error {
	list, err := a.agent.Notifs()
	for _, n := range list {
		a.Note(a.parse(n))
	}
	return err
}

// parse returns the event of a notification. Wrong: it is not whole, or not for this engine.
func (a *actor) parse(n nixlapi.Notif) history.Event {
	var from, to history.Engine
	var number uint64
	var size int
	head, rest, _ := bytes.Cut(n.Msg, []byte("\n"))
	_, err := fmt.Sscanf(string(head), "%s %d %s %d %d %d", &from.Agent, &from.Life, &to.Agent, &to.Life, &number, &size)
	e := history.Event{Kind: history.Got, To: from, Note: number}
	if err != nil || to != a.Engine || n.From != from.Agent || len(rest) != size || pattern.Diff(rest, number, 0) >= 0 {
		e.Wrong, e.Text = 1, fmt.Sprintf("%q from %s, %d bytes behind it", head, n.From, len(rest))
	}
	return e
}
