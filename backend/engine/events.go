package engine

import (
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
			l.remote.fence("completion error")
		} else {
			// The initiator sees it too and asks for a fence, or its control connection ends.
			e.log.Debug("link error at the target", "peer", l.target.in.Agent(), "rail", l.rail.name(), "errno", ev.Code)
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
	r.lose(err)
	r.mu.RLock()
	out := r.out
	r.mu.RUnlock()
	out.Close(err.Error())
}

// Fenced: the target has closed its endpoint; nothing of ours from before can land any more.
func (h initiatorHandler) Fenced(f wire.Fenced) {
	r := h.r
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
