package actor

import (
	"fmt"
	"time"

	"gorail/internal/pattern"
	"gorail/nixlapi"
	"gorail/test/history"
	"gorail/test/history/record"
)

// request makes the request of a slot if there is none.
func (a *actor) request(p *peer, s *slot, descs int) error {
	if s.req != nil {
		return nil
	}
	kind := nixlapi.Write
	if s.what == history.Read {
		kind = nixlapi.Read
	}
	return a.Call(history.Event{What: history.Create, To: p.engine, Text: fmt.Sprint(s.what, " ", len(s.local), " in ", descs)}, func() (err error) {
		there := desc(s.remote)
		there.Addr += p.mem.moved
		s.req, err = a.agent.CreateXfer(kind, nixlapi.DRAM, split(desc(s.local), descs), split(there, descs), p.engine.Agent, nixlapi.XferOpts{Backend: a.backend, NoMerge: true})
		return err
	})
}

// postArgs are of one post.
type postArgs struct {
	descs   int           // of the request, if it is made now
	size    int           // of the notification; below 0: none
	release time.Duration // after the post; 0: never
	clear   bool          // overwrite both places after a success
}

// post posts a slot's request.
func (a *actor) post(p *peer, s *slot, in postArgs) {
	if s.op != nil || !s.registered || time.Now().Before(s.rest) || !a.verify(p, s) {
		return
	}
	if a.request(p, s, in.descs) != nil {
		a.wait(p)
		return
	}
	o := &op{generation: p.mem.generation(p.region).Load(), clear: in.clear}
	if o.generation%2 != 0 {
		return
	}
	e := history.Event{What: s.what, To: p.engine, Text: fmt.Sprint(len(s.local))}
	if in.size >= 0 {
		p.notes++
		e.Note = p.notes
	}
	if s.what == history.Write {
		s.here = writeSeed(a.Engine, a.Next())
		fill(s.local, s.here)
		p.mem.latest(p.region, s.index).Store(pack(a.Engine.Life, a.Next()))
	} else if s.here != localCanary {
		s.here = localCanary
		fill(s.local, s.here)
	}
	o.number = a.Start(e)
	if in.release > 0 {
		o.release = time.Now().Add(in.release)
	}
	var msg *[]byte
	if in.size >= 0 {
		m := a.message(p, e.Note, in.size)
		msg = &m
	}
	s.op = o
	if st := s.req.PostWith(msg); st != nixlapi.InProgress {
		a.finish(p, s, st)
	}
}

// finish takes the end of a transfer in.
func (a *actor) finish(p *peer, s *slot, st nixlapi.Status) {
	o := s.op
	s.op = nil
	end := history.Event{Kind: history.End, Op: o.number, Result: record.ResultOf(st), Text: st.String()}
	s.last, s.lastResult = *o, end.Result
	if end.Result == history.OK {
		end.Text = ""
		a.judge(p, s, o, &end)
		a.Note(end)
		if o.taken {
			a.drop(p, s) // its local memory has another registration
		}
		if o.clear {
			s.clear()
		}
		return
	}
	a.Note(end)
	s.clear()
	a.leave(s)
	s.draining, s.generation = end.Result == history.NotFound && s.what == history.Write, p.mem.generation(p.region).Load()
	a.drop(p, s)
	a.wait(p)
}

// release releases a request in flight.
func (a *actor) release(p *peer, s *slot) {
	o := s.op
	s.op = nil
	a.drop(p, s)
	a.Note(history.Event{Kind: history.End, Op: o.number, Result: history.Released})
	s.last, s.lastResult = *o, history.Released
	s.clear()
	a.leave(s)
	s.draining, s.generation = s.what == history.Write, p.mem.generation(p.region).Load()
}

// drop releases the request of a slot. The agent may refuse the first release of one in flight.
func (a *actor) drop(p *peer, s *slot) {
	if s.req == nil {
		return
	}
	for range 2 {
		if a.Call(history.Event{What: history.Release, To: p.engine}, s.req.Release) == nil {
			break
		}
	}
	s.req = nil
}

// wait leaves a peer alone for a moment after an error.
func (a *actor) wait(p *peer) { p.rest = time.Now().Add(20 * time.Millisecond) }

// poll asks for the status of all transfers.
func (a *actor) poll(now time.Time) {
	for _, p := range a.peers {
		for _, side := range p.sides {
			for _, s := range side.slots {
				if s.op == nil {
					continue
				}
				if st := s.req.Status(); st != nixlapi.InProgress {
					a.finish(p, s, st)
				} else if !s.op.release.IsZero() && now.After(s.op.release) {
					a.release(p, s)
				}
			}
			if !side.registered && side.idle() {
				_ = a.enroll(side, p.engine)
			}
		}
	}
}

func (s *side) idle() bool {
	for _, slot := range s.slots {
		if slot.op != nil {
			return false
		}
	}
	return true
}

// expel deregisters local memory under transfers, and gives it other bytes at once.
func (a *actor) expel(p *peer, s *side) {
	if !s.registered || a.Call(history.Event{What: history.Deregister, To: p.engine, Text: "local"}, func() error {
		return a.agent.Deregister(nixlapi.DRAM, []nixlapi.Desc{desc(s.buf.B)}, a.backend)
	}) != nil {
		return
	}
	s.registered = false
	for _, slot := range s.slots {
		if o := slot.op; o != nil {
			o.wrong = a.readWrong(p, slot, o)
			o.taken = true
		} else {
			a.changed(slot, history.Local, wrong(slot.local, slot.here))
			a.drop(p, slot)
		}
		slot.here = localCanary
		fill(slot.local, localCanary)
	}
}

// message is the notification n to a peer, with size bytes behind its head.
func (a *actor) message(p *peer, n uint64, size int) []byte {
	head := fmt.Appendf(nil, "%s %d %s %d %d %d\n", a.Engine.Agent, a.Engine.Life, p.engine.Agent, p.engine.Life, n, size)
	out := make([]byte, len(head)+size)
	copy(out, head)
	pattern.Fill(out[len(head):], n, 0)
	return out
}
