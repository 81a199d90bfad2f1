package mover

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"gorail/internal/pattern"
	"gorail/nixlapi"
	"gorail/test/history"
	"gorail/test/history/record"
	"gorail/test/worker"
)

// drain is how long an owner may work on a transfer that has ended at its initiator.
const drain = 200 * time.Millisecond

// room is the local memory of a lane.
const room = 256 << 10

func (a *mover) makeLocals() error {
	size := uint64(len(a.Names)*len(kinds)*2*room+(2<<20)-1) &^ (2<<20 - 1)
	host, err := newHostPlace(len(kinds), size)
	if err != nil {
		return err
	}
	a.local = [2]*locals{{host}, {newGPUPlace(a.gpu, worker.GPUMem{Device: a.device(0)}, size)}}
	for _, l := range a.local {
		if err := a.Call(history.Event{What: history.Register, Text: "local"}, func() error {
			return a.agent.Register(l.mem(), []nixlapi.Desc{l.desc()}, a.backend)
		}); err != nil {
			return err
		}
	}
	return nil
}

// at is the local memory of a lane.
func (l *lane) at() uint64 { return uint64(l.place) * room }

// drop releases the request of a lane. The agent may refuse the first release of one in flight.
func (a *mover) drop(p *peer, l *lane) {
	if l.req == nil {
		return
	}
	for range 2 {
		if a.Call(history.Event{What: history.Release, To: p.Engine}, l.req.Release) == nil {
			break
		}
	}
	l.req = nil
}

// shapeOf is the shape of a lane's next request.
func (a *mover) shapeOf(p *peer, l *lane, rng *rand.Rand) shape {
	s := shape{gpu: rng.IntN(2), descs: []int{1, 1, 3, 64}[rng.IntN(4)]}
	base, most := uint64(0), p.Size/2
	if l.what == history.Write {
		base, most = slot(p.Size, a.number(a.Engine.Agent), len(a.Names))
	}
	s.n = min([]uint64{4 << 10, 64 << 10, 100_001, room}[rng.IntN(4)], most)
	s.off = base + rng.Uint64N(most-s.n+1)
	return s
}

// split cuts memory into n descriptors.
func split(d nixlapi.Desc, n int) []nixlapi.Desc {
	out, size := []nixlapi.Desc{}, d.Len/uint64(n)
	for i := range uint64(n) {
		out = append(out, nixlapi.Desc{Addr: d.Addr + i*size, Len: size, Dev: d.Dev})
	}
	out[n-1].Len = d.Len - uint64(n-1)*size
	return out
}

func part(d nixlapi.Desc, off, n uint64) nixlapi.Desc {
	return nixlapi.Desc{Addr: d.Addr + off, Len: n, Dev: d.Dev}
}

// request makes the request of a lane if there is none.
func (a *mover) request(p *peer, l *lane, rng *rand.Rand) error {
	if l.req != nil {
		return nil
	}
	l.shape = a.shapeOf(p, l, rng)
	kind, here, there := nixlapi.Write, a.local[l.gpu], p.Pieces[l.piece]
	if l.what == history.Read {
		kind = nixlapi.Read
	}
	text := fmt.Sprintf("%s %d in %d, %v here", l.what, l.n, l.descs, here.mem())
	return a.Call(history.Event{What: history.Create, To: p.Engine, Piece: l.piece + 1, Text: text}, func() (err error) {
		l.req, err = a.agent.CreateXferBetween(kind, here.mem(), split(part(here.desc(), l.at(), l.n), l.descs), there.Mem, split(part(there.Desc, l.off, l.n), l.descs),
			p.Engine.Agent, nixlapi.XferOpts{Backend: a.backend, NoMerge: true})
		return err
	})
}

// waits reports whether the peer has not looked at the last WRITE of a lane yet.
func (a *mover) waits(p *peer, l *lane) bool {
	return l.what == history.Write && p.board.box(l.piece, a.number(a.Engine.Agent), boxOp).Load() != 0
}

// post posts the request of a lane.
func (a *mover) post(p *peer, l *lane, rng *rand.Rand) {
	if l.op != nil || !l.idle.IsZero() || a.waits(p, l) || p.board.closing(l.piece).Load() != 0 {
		return
	}
	if rng.IntN(5) == 0 {
		a.drop(p, l)
	}
	if a.request(p, l, rng) != nil {
		a.wait(p)
		return
	}
	o := &op{generation: p.board.generation(l.piece).Load()}
	bytes := seed("local", a.Next())
	if l.what == history.Write {
		bytes = writeSeed(a.Engine, a.Next())
	}
	a.local[l.gpu].write(l.at(), bytesOf(bytes, 0, l.n))
	if rng.IntN(16) == 0 {
		o.release = time.Now().Add(time.Duration(rng.IntN(3000)) * time.Microsecond)
	}
	if a.busyAt(p, l).Add(1); p.board.closing(l.piece).Load() != 0 {
		a.busyAt(p, l).Add(^uint64(0))
		return
	}
	o.number = a.Start(history.Event{What: l.what, To: p.Engine, Piece: l.piece + 1, Text: fmt.Sprintf("%s, %d bytes, %v here", kinds[l.piece].name, l.n, a.local[l.gpu].mem())})
	l.op = o
	if st := l.req.Post(); st != nixlapi.InProgress {
		a.finish(p, l, st)
	}
}

// release releases a request in flight.
func (a *mover) release(p *peer, l *lane) {
	o := l.op
	l.op, l.idle = nil, time.Now().Add(drain)
	a.drop(p, l)
	a.Note(history.Event{Kind: history.End, Op: o.number, Result: history.Released})
}

// busyAt counts our transfers in flight, for the owner to see.
func (a *mover) busyAt(p *peer, l *lane) *atomic.Uint64 {
	return p.board.box(l.piece, a.number(a.Engine.Agent), boxBusy)
}

// finish takes the end of a transfer in.
func (a *mover) finish(p *peer, l *lane, st nixlapi.Status) {
	o := l.op
	l.op = nil
	end := history.Event{Kind: history.End, Op: o.number, Result: record.ResultOf(st)}
	switch {
	case end.Result != history.OK:
		end.Text = st.String()
	case l.what == history.Read:
		end.Gen, end.Wrong = a.readOf(p, l)
	}
	a.Note(end)
	if end.Result != history.OK {
		l.idle = time.Now().Add(drain)
		a.drop(p, l)
		a.wait(p)
		return
	}
	a.busyAt(p, l).Add(^uint64(0))
	if l.what == history.Write {
		me := a.number(a.Engine.Agent)
		p.board.box(l.piece, me, boxGeneration).Store(o.generation)
		p.board.box(l.piece, me, boxOffset).Store(l.off)
		p.board.box(l.piece, me, boxLength).Store(l.n)
		p.board.box(l.piece, me, boxOp).Store(pack(a.Engine.Life, o.number))
	}
}

// readOf finds the oldest generation among the bytes of a READ, by blocks. wrong: 1 + the position of a block that is no generation's.
func (a *mover) readOf(p *peer, l *lane) (oldest uint64, wrong int64) {
	const block = 4096
	got := a.local[l.gpu].read(l.at(), l.n)
	newest := p.board.generation(l.piece).Load()
	of := func(g, at, n uint64) bool {
		return pattern.Diff(got[at:at+n], readSeed(p.Engine, l.piece, g), l.off+at) < 0
	}
	if of(newest, 0, l.n) {
		return newest, 0
	}
	oldest = newest
	for at := uint64(0); at < l.n; at += block {
		n, g := min(block, l.n-at), newest
		for !of(g, at, n) && g > 0 {
			g--
		}
		if g == 0 && !of(0, at, n) {
			wrong = int64(at) + 1
		} else {
			oldest = min(oldest, g)
		}
	}
	return oldest, wrong
}

// poll asks for the status of all transfers.
func (a *mover) poll(now time.Time) {
	for _, p := range a.peers {
		for _, l := range p.lanes {
			if !l.idle.IsZero() && now.After(l.idle) {
				l.idle = time.Time{}
				a.busyAt(p, l).Add(^uint64(0))
			}
			if l.op == nil {
				continue
			}
			if st := l.req.Status(); st != nixlapi.InProgress {
				a.finish(p, l, st)
			} else if !l.op.release.IsZero() && now.After(l.op.release) {
				a.release(p, l)
			}
		}
	}
}
