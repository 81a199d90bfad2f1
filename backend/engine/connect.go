package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"gorail/backend/core"
	"gorail/backend/peer"
	"gorail/backend/rlimit"
	"gorail/backend/status"
)

// usable says whether the peer can be posted to, now or once it is connected again.
func (r *remote) usable() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.leaving == nil && (r.state == connecting || r.state == ready || r.state == suspended)
}

// connect begins the first session. Older ones with the same engine that still deliver go first: the peer would end them, and
// notifications keep their order.
func (r *remote) connect() {
	if r.e.olderThan(r) == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.dial()
		return
	}
	r.e.late.Go(func() {
		for old := r.e.olderThan(r); old != nil; old = r.e.olderThan(r) {
			<-old.ended
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.dial()
	})
}

// dial begins a session. Under mu.
func (r *remote) dial() {
	if r.state == connecting && r.out == nil {
		r.out = r.e.node.Dial(r.blob, r.after, initiatorHandler{r, r.asked})
		r.asked.out = r.out
		r.dialed = time.Now()
	}
}

// reconnect begins another session with a peer that is suspended: keys are asked for anew, everything else is as it was. Under mu.
func (r *remote) reconnect() {
	if r.state != suspended || r.e.closed.Load() {
		return
	}
	r.e.log.Log(context.Background(), r.dials.dialing(), "connecting to a peer again", "peer", r.name, "after", r.err)
	r.state, r.err, r.out = connecting, nil, nil
	r.asked = newAsking(r)
	r.dial()
}

// postable says why nothing can be posted to the peer; one that is suspended is connected again. Under mu.
func (r *remote) postable() error {
	r.reconnect()
	switch {
	case r.leaving != nil:
		return status.Errorf(status.ErrNotFound, "peer %q: %w", r.name, r.leaving.why)
	case r.state == lost:
		return status.Errorf(r.code, "peer %q is gone: %w", r.name, r.err)
	case r.state == closed:
		return status.Errorf(status.ErrNotFound, "peer %q: %w", r.name, r.err)
	case r.state == suspended:
		return status.Errorf(status.ErrBackend, "peer %q: %w", r.name, r.err)
	}
	return nil
}

// ended is why a link was closed under a transfer, as far as is known.
func (r *remote) ended() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.state == suspended && r.err != nil {
		return "the session was lost: " + r.err.Error()
	}
	return "the link was closed"
}

// suspend ends a session that may be followed by another. The channel is as down's. Under mu.
func (r *remote) suspend(err error) (quiet <-chan struct{}) {
	if r.state != connecting && r.state != ready {
		return nil
	}
	what, level := "session with a peer suspended", r.dials.lost(r.state == ready)
	if r.state == connecting {
		what = "peer not reached"
	}
	r.state, r.code, r.err = suspended, status.ErrBackend, rlimit.Advise(err)
	if r.leaving != nil {
		r.leaving.asked = false // the next session's target is asked anew
	}
	r.keepNotifs()
	if r.unsent() {
		what += "; connecting again for its notifications"
	} else {
		what += "; the next post or notification connects again"
	}
	r.e.log.Log(context.Background(), level, what, "peer", r.name, "rails", strings.Join(r.path(), ","), "failed", r.dials.n,
		"kept_notifications", len(r.notifs), "err", r.err)
	quiet = r.down(status.ErrBackend)
	r.dropKeys()
	r.forgetRings()
	r.redialLater()
	return quiet
}

// lose ends the last session with a peer that is dead. Under mu.
func (r *remote) lose(err error) {
	if r.state == closed || r.state == lost {
		return
	}
	level := slog.LevelWarn
	if errors.Is(err, peer.ErrPeerClosed) {
		level = slog.LevelInfo // it said goodbye
	}
	was := r.state
	r.state, r.code, r.err = lost, status.ErrRemoteDisconnect, rlimit.Advise(err)
	r.e.log.Log(context.Background(), level, "peer lost", "peer", r.name, "rails", strings.Join(r.path(), ","), "err", r.err)
	if was != suspended {
		r.down(status.ErrRemoteDisconnect)
	}
	r.dropNotifs()
}

// dropKeys forgets what a session that has ended knew of the peer's memory. Under mu.
func (r *remote) dropKeys() {
	for _, g := range r.regions {
		if g.Keyed {
			g.Core.SetLive(false)
		}
		g.Keyed, g.Asked, g.Unknown = false, false, false
		if g.Parts == nil {
			r.want(g)
		}
	}
	for _, g := range r.unloaded {
		if g.Keyed && g.Pin() { // else its entry in the table may be another's
			g.Core.SetLive(false)
			g.Keyed = false
			r.e.regions.Regions.Unpin(g)
		}
	}
	clear(r.byTarget)
	clear(r.requests)
	r.unloaded, r.early = nil, nil
}

// down drops the links, as drop does, and ends everything that waits. The channel is closed when nothing touches memory of either side
// any more; nil: nothing does. Under mu.
func (r *remote) down(code status.Code) (quiet <-chan struct{}) {
	st := int32(code)
	r.change()
	r.asked.end()
	if r.state != suspended && r.hasSess && r.sess.Queued() > 0 { // else these are transfers' that fail
		r.e.log.Warn("notifications lost with the session", "peer", r.name, "bytes", r.sess.Queued(), "err", r.err)
	}
	r.e.past.add(r.view(), stateNames[r.state])
	if r.hasSess {
		r.asked.parting = r.parting()
		quiet = r.e.drop(r.links, r.sess, st, r.asked.parting)
		r.hasSess = false
	} else {
		quiet = r.e.drop(r.links, core.Session{}, st, nil)
	}
	if len(r.held) > 0 {
		r.e.after(0, r.settleHeld) // not under mu
	}
	r.links, r.home = nil, nil
	for _, t := range r.waiting {
		r.e.xfers.Rest(t.rec) // before it may be posted again
		t.x.Settle(st)
	}
	r.waiting = nil
	r.revokes = nil
	return quiet
}

// close ends the session on purpose; with a departure only if the application has not come back from that.
func (r *remote) close(why error, d *departure) {
	r.mu.Lock()
	if d != nil && r.leaving != d {
		r.mu.Unlock()
		return
	}
	out := r.out
	was := r.state
	if was == closed {
		r.mu.Unlock()
		return
	}
	r.state = closed
	var quiet <-chan struct{}
	if was == connecting || was == ready {
		r.err = why
		quiet = r.down(status.ErrBackend)
	}
	r.dropNotifs()
	r.retireAll()
	r.mu.Unlock()
	if out != nil && (was == connecting || was == ready) {
		r.goodbye(out, quiet, why)
	}
}

// goodbye tells the peer of the session's end, once all is quiet: the peer forgets our address with the session, not while operations are on
// their way to it.
func (r *remote) goodbye(out *peer.Out, quiet <-chan struct{}, why error) {
	if quiet == nil {
		out.Close(why.Error())
		return
	}
	r.e.late.Go(func() {
		select {
		case <-quiet:
		case <-time.After(max(goodbyeWait, r.e.opt.PeerTimeout)):
		}
		out.Close(why.Error())
	})
}

// retireAll lets go of all of the peer's regions. Under mu.
func (r *remote) retireAll() {
	for rng, g := range r.regions {
		delete(r.regions, rng)
		r.retire(g)
	}
}

// goodbyeWait is the least time that a goodbye waits for operations in flight.
const goodbyeWait = 10 * time.Second

// Lost is the control channel's verdict.
func (h initiatorHandler) Lost(err error) {
	r := h.r
	if !r.e.enter() {
		return
	}
	defer r.e.leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !h.current():
	case errors.Is(err, peer.ErrDead) && !r.self:
		r.lose(err)
	default:
		r.suspend(err)
	}
}

// giveUp ends a session that a failure of ours or of the peer's has made useless.
func (h initiatorHandler) giveUp(err error) {
	r := h.r
	if !r.e.enter() {
		return
	}
	defer r.e.leave()
	r.mu.Lock()
	var quiet <-chan struct{}
	if h.current() {
		quiet = r.suspend(err)
	}
	r.mu.Unlock()
	if h.asked.out != nil {
		r.goodbye(h.asked.out, quiet, err)
	}
}
