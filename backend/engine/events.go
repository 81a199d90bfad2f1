package engine

import (
	"time"

	"gorail/backend/fastpath"
	"gorail/backend/status"
	"gorail/backend/wire"
	"gorail/backend/xfer"
)

// onEvent takes what the core leaves to Go, in the one goroutine for that.
func (e *Engine) onEvent(ev fastpath.Event) {
	switch ev.Kind {
	case fastpath.EvXfer:
		rec, err := e.xfers.Get(xfer.FromUint64(ev.ID))
		if err != nil {
			return // released and freed meanwhile
		}
		t := rec.Value
		e.settle(t, ev.Code)
		if t.zombie.Load() {
			e.reap(t)
		}
		t.remote.settleRevokes()
	case fastpath.EvLink:
		e.linksMu.Lock()
		l := e.links[ev.ID]
		e.linksMu.Unlock()
		if l == nil {
			return
		}
		if l.remote != nil {
			e.log.Info("link error", "peer", l.remote.name, "rail", l.rail.name(), "errno", ev.Code)
			l.remote.failed(l, ev.Seq)
		} else {
			e.log.Info("link error", "peer", l.target.in.Agent(), "rail", l.rail.name(), "errno", ev.Code, "session", "target")
			go l.target.failed(l, ev.Seq) // not here: Fence holds mu while it waits for this goroutine
		}
	case fastpath.EvMessage:
		e.mu.RLock()
		t := e.byID[ev.ID]
		e.mu.RUnlock()
		if t != nil {
			t.message(ev)
		}
	}
}

// failed fences a link that reported an error: at once, or, when nothing has gone through since the last time, after a
// pause that doubles. Without it a link that is away for good, and notifications that wait for it, would keep a core busy.
func (r *remote) failed(l *link, epoch uint64) {
	const first, most = time.Millisecond, 500 * time.Millisecond
	r.mu.Lock()
	if r.state != ready || !l.up || epoch != uint64(l.epoch) { // or the endpoint that failed is gone already
		r.mu.Unlock()
		return
	}
	s := l.l.Stats()
	if good := s.Completions - s.Errors; good > l.good || l.epoch == 0 {
		l.good, l.pause = good, 0
	} else {
		l.pause = min(max(2*l.pause, first), most)
	}
	pause := l.pause
	r.mu.Unlock()
	if pause == 0 {
		r.fence("completion error")
		return
	}
	time.AfterFunc(pause, func() {
		if r.e.enter() {
			defer r.e.leave()
			r.fence("completion error")
		}
	})
}

// failed asks the initiator for a fence, unless it has come already.
func (t *target) failed(l *link, epoch uint64) {
	if !t.e.enter() {
		return
	}
	defer t.e.leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.gone && l.up && epoch == uint64(l.epoch) && !l.l.Stats().Up {
		t.in.WantFence(uint8(l.rail.index), l.epoch)
	}
}

// wants says whether a fence that the target asks for is still due.
func (r *remote) wants(f wire.Fenced) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, l := range r.links {
		if l.peer == int(f.Rail) && l.epoch == f.Epoch && !l.fencing {
			return true
		}
	}
	return false
}

// fence gives up our endpoint and asks the peer to end our access through its own and to open another; with the answer
// the link goes on, and what was not complete is replayed. If the peer does not answer, the control channel will tell.
func (r *remote) fence(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != ready {
		return
	}
	for _, l := range r.links {
		if l.fencing {
			continue
		}
		l.fencing = true
		r.e.quiesce(l)
		if err := r.e.renew(l); err != nil {
			r.e.log.Error("cannot renew an endpoint; the peer is given up", "peer", r.name, "rail", l.rail.name(), "err", err)
			go r.giveUp(err)
			return
		}
		r.e.log.Info("fencing a link", "peer", r.name, "rail", l.rail.name(), "reason", why)
		r.out.Fence(r.e.ids.Add(1), uint8(l.peer), l.epoch, l.ep.Addr())
	}
	r.epoch++
}

func (r *remote) giveUp(err error) {
	r.lose(err, status.ErrBackend)
	r.mu.RLock()
	out := r.out
	r.mu.RUnlock()
	out.Close(err.Error())
}

// Fenced: the target has closed its endpoint; nothing of ours from before can land any more.
func (h initiatorHandler) Fenced(f wire.Fenced) {
	r := h.r
	if !r.e.enter() {
		return
	}
	defer r.e.leave()
	if f.ID == 0 {
		if r.wants(f) {
			r.fence("the peer's endpoint has failed")
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != ready {
		return
	}
	for _, l := range r.links {
		if l.peer != int(f.Rail) || l.epoch != f.Epoch || !l.fencing {
			continue
		}
		err := error(nil)
		if len(f.Addr) == 0 {
			err = status.Errorf(status.ErrBackend, "the peer could not open another endpoint")
		} else if err = l.ep.Connect(f.Addr); err == nil {
			err = l.l.Rebind(l.ep.Core(), f.NextSeq)
		}
		if err != nil {
			go r.giveUp(err)
			return
		}
		l.fencing = false
		r.epoch++
		r.e.log.Info("link renewed", "peer", r.name, "rail", l.rail.name(), "epoch", l.epoch)
	}
	r.kick()
}
