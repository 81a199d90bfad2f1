package initiator

import (
	"context"
	"slices"
	"syscall"
	"time"

	"gorail/backend/core"
	"gorail/backend/failover"
	"gorail/backend/link"
	"gorail/backend/transfer"
)

// LinkEvent implements link.Owner.
func (r *Session) LinkEvent(l *link.Link, epoch uint64, errno int32) {
	r.peer.Events.Do(r.s.Life, func() {
		if errno == 0 {
			r.cameUp(l, epoch)
			return
		}
		r.failed(l, epoch, syscall.Errno(errno))
	})
}

// moveNotifLink sees to it that notifications go out on a link that works, if one does. Under mu.
func (r *Session) moveNotifLink() {
	if r.notifLink != nil && r.notifLink.Phase == failover.Working {
		return
	}
	for _, l := range r.links {
		if l.Phase == failover.Working {
			r.notifLink = l
			r.sess.SetNotifLink(l.Core)
			return
		}
	}
}

// owns says that the link is one of the session that is ready: timers and events may come for links of an earlier one. Under mu.
func (r *Session) owns(l *link.Link) bool { return r.state == ready && slices.Contains(r.links, l) }

// failed deals with a link that reported an error: see failover.Session.Failed.
func (r *Session) failed(l *link.Link, epoch uint64, cause syscall.Errno) {
	const why = "completion error"
	r.mu.Lock()
	defer r.mu.Unlock()
	r.s.Log.Log(context.Background(), l.Level(), "link error", "peer", r.name, "rail", l.Rail.Name(), "errno", int32(cause))
	if !r.owns(l) || !l.Up || epoch != uint64(l.Epoch) { // or the endpoint that failed is gone already
		return
	}
	l.Fault = cause
	if pause := r.failover.Failed(&l.Link, l.Count(), len(r.revokes) > 0); pause > 0 { // the answer to a revocation waits for the fence
		r.later(l, pause, why)
		return
	}
	r.fence(l, why)
}

// later fences a link after a pause unless something else has happened to it by then. Under mu.
func (r *Session) later(l *link.Link, pause time.Duration, why string) {
	epoch := l.Epoch
	r.s.Life.After(pause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.owns(l) && l.Epoch == epoch {
			r.fence(l, why)
		}
	})
}

// Fence fences those of the links that still have the epoch. Implements transfer.Session.
func (r *Session) Fence(on []transfer.Route, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, route := range on {
		for _, l := range r.links {
			if l.Up && l.Core == route.Link && l.Epoch == route.Epoch {
				r.fence(l, why)
			}
		}
	}
}

// fenceBroken fences those that have stopped. Under mu.
func (r *Session) fenceBroken(why string) {
	for _, l := range r.links {
		if l.Up && l.Phase == failover.Working && l.Core.Stats().State != core.LinkUp {
			r.fence(l, why)
		}
	}
}

// Unanswered ends the wait for a peer that does not answer a FENCE. A READ is over with our own endpoint, so it waits for no longer than
// cancel_timeout. Of a WRITE bytes may lie in the peer's socket: its status waits up to peer_timeout. The session goes on. Implements
// transfer.Session.
func (r *Session) Unanswered(now time.Time) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, l := range r.links {
		if waited := now.Sub(l.Since); l.Phase == failover.Fencing && l.Up && waited > r.s.Options.CancelTimeout {
			l.Core.Abandon(waited > r.s.Options.PeerTimeout)
		}
	}
}

// fence gives up our endpoint and asks the peer to end our access through its own and to open another. With the answer
// what was not complete is replayed, by other links where there are. If the peer does not answer, the control channel
// will tell. Under mu.
func (r *Session) fence(l *link.Link, why string) {
	if r.state != ready || l.Phase == failover.Fencing || l.Phase == failover.Draining || !l.Up {
		return
	}
	l.Fenced()
	if l.Shared() {
		r.drain(l, why)
		return
	}
	r.change(func() { l.Enter(failover.Fencing, time.Now()) })
	r.doubt(l, why)
	l.Core.Stop()
	r.moveNotifLink() // before the endpoint is closed, which may take its time
	if r.s.Links.Quiesce(l) != nil {
		r.peer.Leak()
	}
	var addr []byte
	if err := l.Renew(); err == nil {
		addr = l.EP.Addr()
	} else if r.s.Log.Error("cannot renew an endpoint", "peer", r.name, "rail", l.Rail.Name(), "err", err); !r.failover.AnyUsable(&l.Link) {
		go r.conn.GiveUp(err)
		return
	}
	r.s.Log.Log(context.Background(), l.Level(), "fencing a link", "peer", r.name, "rail", l.Rail.Name(), "link", l.Num, "reason", why)
	if len(r.peer.Pairs) > 1 && !r.failover.SiblingWorks(&l.Link) {
		r.conn.out.Suspect(l.Rail.Addr(), "a rail over the same address is fenced: "+why)
	}
	r.conn.out.Fence(r.s.Life.NextID(), uint8(l.Num), l.Epoch, addr)
}

// drain is what takes the fence's place on a shared endpoint: the link stops, and when everything that is posted has
// completed, the transfers of which an operation failed end in an error; the rest goes on. Under mu.
func (r *Session) drain(l *link.Link, why string) {
	r.s.Log.Info("a rail that cannot be fenced drains", "peer", r.name, "rail", l.Rail.Name(), "reason", why)
	r.change(func() {
		l.Enter(failover.Draining, time.Now())
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
		case !r.owns(l) || l.Epoch != epoch || l.Phase != failover.Draining:
		case !l.Drained():
			r.s.Life.After(time.Millisecond, look)
		default:
			l.Core.Finalize()
			if err := r.goOn(l, core.Proof{}, nil); err != nil {
				go r.conn.GiveUp(err)
			}
		}
	}
	r.s.Life.After(0, look)
}
