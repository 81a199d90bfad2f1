package engine

import (
	"context"
	"syscall"

	"gorail/backend/core"
	"gorail/backend/xfer"
)

// onEvent takes what the core leaves to Go, in the one goroutine for that, and hands it to the peer's own.
func (e *Engine) onEvent(ev core.Event) {
	switch ev.Kind {
	case core.EvXfer:
		if rec, err := e.xfers.Get(xfer.FromUint64(ev.ID)); err == nil { // else released and freed meanwhile
			t := rec.Value
			t.remote.events.do(e, func() { e.ended(t, ev.Code) })
		}
	case core.EvLink:
		e.linksMu.Lock()
		l := e.links[ev.ID]
		e.linksMu.Unlock()
		switch {
		case l == nil:
		case l.remote != nil:
			l.remote.events.do(e, func() { l.remote.linkEvent(l, ev) })
		case ev.Code == 0:
			go l.target.heard(l, ev.Seq)
		default:
			e.log.Info("link error", "peer", l.target.in.Agent(), "rail", l.rail.Name(), "errno", ev.Code, "session", "target")
			go l.target.failed(l, ev.Seq) // not among the events: Fence holds mu while it waits for those
		}
	case core.EvMessage:
		e.mu.RLock()
		t := e.byID[ev.ID]
		e.mu.RUnlock()
		if t != nil {
			t.events.do(e, func() { t.message(ev) })
		}
	}
}

// ended takes in that a transfer has failed, or that one has ended whose end was waited for. One that ended well may have been posted
// again since.
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

// linkEvent: a link has failed, or its probe is through.
func (r *remote) linkEvent(l *link, ev core.Event) {
	if ev.Code == 0 {
		r.cameUp(l, ev.Seq)
		return
	}
	r.e.log.Log(context.Background(), l.level(), "link error", "peer", r.name, "rail", l.rail.Name(), "errno", ev.Code)
	r.failed(l, ev.Seq, syscall.Errno(ev.Code))
}
