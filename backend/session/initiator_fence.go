package session

import (
	"errors"
	"log/slog"
	"slices"
	"syscall"
	"time"

	"gorail/backend/core"
	"gorail/backend/host"
	"gorail/backend/provider"
	"gorail/backend/transfer"
)

// linkEvent handles an event of a link: see Set.Event.
func (r *Initiator) linkEvent(l *Link, epoch uint64, errno int32) {
	r.peer.Events.Do(r.s.Life, func() {
		if errno == 0 {
			r.probeAnswered(l, epoch)
			return
		}
		r.failed(l, epoch, syscall.Errno(errno))
	})
}

// moveNotifLink selects a working link for notifications, if one works. Under mu.
func (r *Initiator) moveNotifLink() {
	if r.notifLink != nil && r.notifLink.Phase == Working {
		return
	}
	for _, l := range r.links {
		if l.Phase == Working {
			r.notifLink = l
			r.sess.SetNotifLink(l.Core)
			return
		}
	}
}

// owns returns true if the link belongs to the ready session. Timers and events may come for links of an earlier
// session. Under mu.
func (r *Initiator) owns(l *Link) bool { return r.state == ready && slices.Contains(r.links, l) }

// failed handles a link that reported an error: see Failover.Failed.
func (r *Initiator) failed(l *Link, epoch uint64, cause syscall.Errno) {
	const why = "completion error"
	r.mu.Lock()
	defer r.mu.Unlock()
	level := l.Level()
	if level == slog.LevelInfo && host.Exhausted(cause) && !errors.Is(l.Fault, cause) { // a warning each time would say nothing new
		level = slog.LevelWarn
	}
	fault := host.Advise(cause)
	l.Log(r.s.Log, level, "link error", "peer", r.name, "rail", l.Rail.Name(), "errno", int32(cause), "err", fault)
	if !r.owns(l) || !l.Up || epoch != uint64(l.Epoch) { // or the failed endpoint is closed already
		return
	}
	l.Fault = fault
	if pause := r.failover.Failed(&l.LinkState, l.Count(), len(r.revokes) > 0); pause > 0 { // a revocation waits for the fence
		r.fenceAfter(l, pause, why)
		return
	}
	r.fence(l, why)
}

// fenceAfter fences a link after a pause, unless its epoch has changed by then. Under mu.
func (r *Initiator) fenceAfter(l *Link, pause time.Duration, why string) {
	epoch := l.Epoch
	r.s.Life.After(pause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.owns(l) && l.Epoch == epoch {
			r.fence(l, why)
		}
	})
}

// Fence fences the links that still have the epoch of their route. overdue: an aborted transfer waits for a peer that does not answer a
// FENCE. A READ ends with our own endpoint, so its status waits at most cancel_timeout. Bytes of a WRITE may still be in the peer's socket,
// so its status waits at most peer_timeout. Neither waits once the peer has answered, while other endpoints are opened. The session
// continues. Implements transfer.Session.
func (r *Initiator) Fence(on []transfer.Route, why string, overdue bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, route := range on {
		for _, l := range r.links {
			if l.Up && l.Core == route.Link && l.Epoch == route.Epoch {
				r.fence(l, why)
			}
		}
	}
	for _, l := range r.links {
		if waited := time.Since(l.Since); overdue && l.Phase == Fencing && l.Up && (l.Answer != nil || waited > r.s.Options.CancelTimeout) {
			l.Core.Abandon(l.Answer != nil || waited > r.s.Options.PeerTimeout)
		}
	}
}

// fenceBroken fences the working links whose core link has stopped. Under mu.
func (r *Initiator) fenceBroken(why string) {
	for _, l := range r.links {
		if l.Up && l.Phase == Working && l.Core.Stats().State != core.LinkUp {
			r.fence(l, why)
		}
	}
}

// fence closes our endpoint of a link, and asks the peer to close the peer's. After the answer, incomplete operations are replayed, on
// other links where there are any. Other endpoints are opened with the same FENCE, or with another one after the answer: see
// Failover.CloseFirst. If the peer does not answer, the control channel reports the loss. Under mu.
func (r *Initiator) fence(l *Link, why string) {
	if r.state != ready || l.Phase == Fencing || l.Phase == Draining || !l.Up {
		return
	}
	opens := l.Closed // at both ends: there is nothing to close, and nothing to report
	if !opens {
		l.Fenced()
		l.DownLogged = false
	}
	if l.Shared() {
		r.drain(l, why)
		return
	}
	l.Closed = !opens && r.failover.CloseFirst(&l.LinkState)
	r.change(func() { l.Enter(Fencing, time.Now()) })
	r.logUnproved(l, why)
	l.Core.Stop()
	r.moveNotifLink() // before closing the endpoint, which may take long
	if err := r.s.Links.Quiesce(l); err != nil && !errors.As(err, new(*provider.GPUBusy)) {
		r.peer.Leak()
	}
	var addr []byte
	if l.Closed {
		l.Epoch++
	} else if err := l.Renew(); err == nil {
		addr = l.EP.Addr()
	} else if l.Rail.Away.Load() { // its interface has lost the address: with another one, or this one again, the next fence opens
		l.Closed = true
	} else if r.s.Log.Error("cannot open a new endpoint for a link", "peer", r.name, "rail", l.Rail.Name(), "err", err); !r.failover.AnyUsable(&l.LinkState) {
		go r.conn.GiveUp(err)
		return
	}
	if !opens {
		l.Log(r.s.Log, l.Level(), "fencing a link", "peer", r.name, "rail", l.Rail.Name(), "link", l.Num, "reason", why)
	}
	if !opens && len(r.peer.Pairs()) > 1 && !r.failover.SiblingWorks(&l.LinkState) {
		r.conn.out.Suspect(l.Rail.Addr(), "a rail over the same address is fenced: "+why)
	}
	r.sendFence(l, addr)
}

// sendFence sends a FENCE with the address of our new endpoint, or without one. Under mu.
func (r *Initiator) sendFence(l *Link, addr []byte) {
	l.FenceID = r.s.Life.NextID()
	r.conn.out.Fence(l.FenceID, uint8(l.Num), l.Epoch, addr)
}

// drain replaces the fence on a shared endpoint. The link stops, and waits until everything posted has completed.
// Transfers with a failed operation then end in an error; the others continue. Under mu.
func (r *Initiator) drain(l *Link, why string) {
	l.Log(r.s.Log, slog.LevelInfo, "draining a link: a shared endpoint cannot be fenced", "peer", r.name, "rail", l.Rail.Name(), "reason", why)
	r.change(func() {
		l.Enter(Draining, time.Now())
		l.Epoch++
		l.Core.Stop()
	})
	r.moveNotifLink()
	epoch := l.Epoch
	var look func()
	look = func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case !r.owns(l) || l.Epoch != epoch || l.Phase != Draining:
		case !l.Drained():
			r.s.Life.After(time.Millisecond, look)
		default:
			l.Core.Finalize()
			if err := r.resumeLink(l, core.Proof{}, nil); err != nil {
				go r.conn.GiveUp(err)
			}
		}
	}
	r.s.Life.After(0, look)
}
