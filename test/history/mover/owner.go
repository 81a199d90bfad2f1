package mover

import (
	"math/rand/v2"
	"strings"
	"time"

	"gorail/internal/pattern"
	"gorail/nixlapi"
	"gorail/test/history"
)

func (a *mover) makePieces() error {
	for i, k := range kinds {
		p := &piece{kind: k, number: i}
		if k.gpu == nil {
			var err error
			if p.place, err = newHostPlace(i, a.Size); err != nil {
				return err
			}
		} else {
			m := *k.gpu
			m.Device = a.device(m.Device)
			p.place = newGPUPlace(a.gpu, m, a.Size)
		}
		a.pieces = append(a.pieces, p)
		a.refill(p)
		if err := a.register(p); err != nil {
			return err
		}
		a.say(p, history.Stable, k.name)
	}
	return nil
}

// say notes what a piece is from now on.
func (a *mover) say(p *piece, s history.State, text string) {
	a.Note(history.Event{Kind: history.Altered, Piece: p.number + 1, Gen: p.generation, State: s, Text: text})
}

// refill gives new memory the bytes of its generation.
func (a *mover) refill(p *piece) {
	p.write(0, bytesOf(readSeed(a.Engine, p.number, p.generation), 0, a.Size/2))
	a.board.setFiles(p.number, p.files())
	a.board.generation(p.number).Store(p.generation)
}

func (a *mover) register(p *piece) error {
	err := a.Call(history.Event{What: history.Register, Text: p.name}, func() error {
		return a.agent.Register(p.mem(), []nixlapi.Desc{p.desc()}, a.backend)
	})
	p.registered = err == nil
	return err
}

// slot is where an initiator's WRITEs go.
func slot(size uint64, initiator, initiators int) (off, n uint64) {
	n = size / 2 / uint64(initiators) / 4096 * 4096
	return size/2 + uint64(initiator)*n, n
}

// look looks for the bytes of WRITEs that have ended with success.
func (a *mover) look(p *piece) {
	for i, name := range a.Names {
		box := a.board.box(p.number, i, boxOp)
		w := box.Load()
		if w == 0 {
			continue
		}
		life, op := unpack(w)
		by := history.Engine{Agent: name, Life: life}
		e := history.Event{Kind: history.Taken, To: by, Op: op, Piece: p.number + 1, Gen: p.generation}
		if p.away || a.board.box(p.number, i, boxGeneration).Load() != p.generation {
			e.Unseen = true
		} else {
			off, n := a.board.box(p.number, i, boxOffset).Load(), a.board.box(p.number, i, boxLength).Load()
			e.Wrong = pattern.Diff(p.read(off, n), writeSeed(by, op), 0) + 1
		}
		a.Note(e)
		box.CompareAndSwap(w, 0)
	}
}

// take takes the memory of a piece away.
func (a *mover) take(p *piece, c change) {
	if p.away || p.lost {
		return
	}
	var how []string
	a.say(p, history.Changing, "")
	a.look(p)
	p.away = true
	if c.deregister {
		how = append(how, "deregistered")
		if a.Call(history.Event{What: history.Deregister, Text: p.name}, func() error {
			return a.agent.Deregister(p.mem(), []nixlapi.Desc{p.desc()}, a.backend)
		}) != nil {
			p.lost = true
			return
		}
		p.registered = false
	}
	if c.unmap {
		how = append(how, "unmapped")
		files := p.files()
		p.unmap()
		p.unmapped = true
		a.owed(files, p.name+" "+strings.Join(how, ", "))
	}
	a.say(p, p.gone(), strings.Join(how, ", "))
	p.until = time.Now().Add(c.hold)
}

// gone is the state of a piece that is away.
func (p *piece) gone() history.State {
	if p.unmapped && p.gpu != nil && p.gpu.Handles == 0 {
		return history.Freed
	}
	return history.Away
}

// putBack puts other bytes there, in other memory if the piece is unmapped. handles: how many.
func (a *mover) putBack(p *piece, handles int) {
	a.say(p, history.Changing, "")
	if p.unmapped {
		if err := p.remap(handles); err != nil { // the addresses are in use: they may come back
			p.tries++
			p.lost, p.until = p.tries > 40, time.Now().Add(50*time.Millisecond)
			a.say(p, p.gone(), err.Error())
			return
		}
		p.unmapped, p.tries = false, 0
	}
	p.generation++
	a.refill(p)
	if !p.registered && a.register(p) != nil {
		p.lost = true
		return
	}
	p.away = false
	a.board.closing(p.number).Store(0)
	a.say(p, history.Stable, "")
}

// change begins a change of one of the pieces that change.
func (a *mover) change(rng *rand.Rand) {
	c := change{deregister: rng.IntN(3) == 0, unmap: rng.IntN(4) != 0}
	if !c.unmap {
		c.deregister = true
	}
	if rng.IntN(2) == 0 {
		c.hold = time.Duration(rng.IntN(400)) * time.Millisecond
	}
	p := a.pieces[rng.IntN(len(a.pieces))]
	switch {
	case p.steady || p.away || p.lost || p.wanted != nil:
	case p.gpu != nil && c.unmap:
		p.wanted, p.until = &c, time.Now().Add(300*time.Millisecond)
		a.board.closing(p.number).Store(1)
	default:
		a.take(p, c)
	}
}

// closeWanted takes a GPU's memory away when no transfer is in flight. A GPU that copies from addresses that are unmapped meanwhile fails for
// good: an application sees to it that this does not happen. It waits for a while.
func (a *mover) closeWanted(p *piece, now time.Time) {
	if a.board.busy(p.number) && now.Before(p.until) {
		return
	}
	if !a.board.busy(p.number) {
		a.take(p, *p.wanted)
	}
	p.wanted = nil
	if !p.away || !a.Spared {
		a.board.closing(p.number).Store(0)
	}
}

// due puts back what has been away for long enough.
func (a *mover) due(now time.Time) {
	for _, p := range a.pieces {
		if p.wanted != nil {
			a.closeWanted(p, now)
		}
		if p.away && !p.lost && now.After(p.until) {
			rng := rand.New(rand.NewPCG(seed(a.Seed, a.Engine, p.number), p.generation))
			a.putBack(p, 1+rng.IntN(2))
		}
		if !p.away || p.lost {
			a.look(p)
		}
	}
}
