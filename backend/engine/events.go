package engine

import (
	"gorail/backend/fastpath"
	"gorail/backend/xfer"
)

// ended: the core has no more of the transfer. One that ended well may have been posted again since.
func (e *Engine) ended(t *transfer, code int32) {
	if code != 0 {
		e.settle(t, code)
	}
	if t.zombie.Load() {
		e.reap(t)
	}
	if t.inner != nil {
		select {
		case t.inner <- struct{}{}:
		default:
		}
	}
	t.remote.settleRevokes()
}

// onEvent takes what the core leaves to Go, in the one goroutine for that.
func (e *Engine) onEvent(ev fastpath.Event) {
	switch ev.Kind {
	case fastpath.EvXfer:
		rec, err := e.xfers.Get(xfer.FromUint64(ev.ID))
		if err != nil {
			return // released and freed meanwhile
		}
		e.ended(rec.Value, ev.Code)
	case fastpath.EvLink:
		e.linksMu.Lock()
		l := e.links[ev.ID]
		e.linksMu.Unlock()
		if l == nil {
			return
		}
		if l.remote != nil && ev.Code == 0 {
			l.remote.cameUp(l, ev.Seq)
		} else if l.remote != nil {
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
