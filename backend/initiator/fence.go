package initiator

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"gorail/backend/core"
	"gorail/backend/failover"
	"gorail/backend/link"
	"gorail/backend/rlimit"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// LinkEvent implements link.Owner.
func (r *Session) LinkEvent(l *link.Link, epoch uint64, errno int32) {
	r.peer.Events.Do(r.s.Life, func() {
		if errno == 0 {
			r.cameUp(l, epoch)
			return
		}
		r.s.Log.Log(context.Background(), l.Level(), "link error", "peer", r.name, "rail", l.Rail.Name(), "errno", errno)
		r.failed(l, epoch, syscall.Errno(errno))
	})
}

// rehome sees to it that notifications go out on a link that works, if one does. Under mu.
func (r *Session) rehome() {
	if r.home != nil && r.home.Phase == failover.Working {
		return
	}
	for _, l := range r.links {
		if l.Phase == failover.Working {
			r.home = l
			r.sess.SetHome(l.Core)
			return
		}
	}
}

// owns says that the link is one of the session that is ready: timers and events may come for links of an earlier one. Under mu.
func (r *Session) owns(l *link.Link) bool { return r.state == ready && slices.Contains(r.links, l) }

// failed deals with a link that reported an error: see failover.Session.Failed.
func (r *Session) failed(l *link.Link, epoch uint64, cause error) {
	const why = "completion error"
	r.mu.Lock()
	defer r.mu.Unlock()
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
	if r.s.Links.Quiesce(l) != nil {
		r.peer.Leak()
	}
	r.rehome()
	var addr []byte
	if err := l.Renew(); err == nil {
		addr = l.EP.Addr()
	} else if r.s.Log.Error("cannot renew an endpoint", "peer", r.name, "rail", l.Rail.Name(), "err", err); !r.failover.Hope(&l.Link) {
		go r.conn.GiveUp(err)
		return
	}
	r.s.Log.Log(context.Background(), l.Level(), "fencing a link", "peer", r.name, "rail", l.Rail.Name(), "link", l.Num, "reason", why)
	if len(r.peer.Pairs) > 1 && !r.failover.Twin(&l.Link) {
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
	r.rehome()
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
			l.Core.Settle()
			if err := r.goOn(l, core.Proof{}, nil); err != nil {
				go r.conn.GiveUp(err)
			}
			r.peer.Kick()
		}
	}
	r.s.Life.After(0, look)
}

// Fenced: the target has closed its endpoint; nothing of ours from before can land any more. Implements peer.InitiatorHandler.
func (c *conn) Fenced(f wire.Fenced) {
	r := c.r
	if !r.s.Life.Enter() {
		return
	}
	defer r.s.Life.Leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != ready || !c.current() || int(f.Rail) >= len(r.links) {
		c.parting.answered(f.ID)
		return
	}
	l := r.links[f.Rail]
	switch {
	case l.Epoch != f.Epoch:
	case f.ID == 0: // the target asks for it
		if !l.Up {
			r.startLink(l)
		} else if l.Phase != failover.Fencing {
			r.fence(l, "the peer's endpoint has failed")
		}
	case l.Phase == failover.Fencing:
		c.answered(l, f)
	}
}

// answered goes on with a link whose fence the target has answered. Under mu, which it gives away for a while.
func (c *conn) answered(l *link.Link, f wire.Fenced) {
	r := c.r
	ep, err := l.EP, errors.New("the peer could not open another endpoint")
	if ep == nil {
		err = errors.New("no endpoint could be opened")
	} else if len(f.Addr) > 0 {
		r.mu.Unlock() // on RoCE the kernel may look for the neighbour for a second: posts over other rails go on
		err = r.s.Links.Reach(ep, f.Addr, []netip.Addr{c.out.Remote()})
		r.mu.Lock()
	}
	if !r.owns(l) || l.Phase != failover.Fencing || l.Epoch != f.Epoch || l.EP != ep {
		return
	}
	l.NoteEnds()
	if !l.Up {
		r.started(l, err)
		return
	}
	if err := r.goOn(l, core.Proof{Next: f.NextSeq, Have: f.Have}, err); err != nil {
		go c.GiveUp(err)
	}
	r.peer.Kick()
}

// goOn uses a link again that is quiet now, or lets it rest while others do its work; err says why it can't be used. The
// error given back ends the session. Under mu.
func (r *Session) goOn(l *link.Link, proof core.Proof, err error) error {
	alone := !r.failover.Others(&l.Link)
	if alone && err == nil {
		r.change(func() {
			if err = l.Rebind(proof, !l.Proved); err == nil {
				r.failover.Renewed(&l.Link)
			}
		})
		if err == nil && l.Phase == failover.Working {
			r.rehome()
			r.s.Log.Info("link renewed", "peer", r.name, "rail", l.Rail.Name(), "link", l.Num, "epoch", l.Epoch)
		}
		if err == nil {
			return nil
		}
	}
	if alone && !r.failover.Hope(&l.Link) {
		return err
	}
	if alone {
		r.s.Log.Warn("rail rests, and no other works yet", "peer", r.name, "rail", l.Rail.Name(), "err", rlimit.Advise(err))
	} else {
		r.s.Log.Log(context.Background(), l.Level(), "rail rests; others carry its work", "peer", r.name, "rail", l.Rail.Name(), "link", l.Num,
			"pause", l.Pause, "err", err)
	}
	var retry failover.Retry
	r.change(func() {
		l.Core.Yield(proof) // what has arrived must not be sent again when another comes up first
		retry = r.failover.Rest(&l.Link, err)
	})
	switch epoch := l.Epoch; {
	case retry.Fence:
		r.later(l, retry.After, "another try")
	case retry.After == 0:
		r.probe(l)
	default:
		r.s.Life.After(retry.After, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.owns(l) && l.Epoch == epoch && l.Phase == failover.Resting {
				r.probe(l)
			}
		})
	}
	return nil
}

// probe tries a link that rests. Under mu.
func (r *Session) probe(l *link.Link) {
	l.Enter(failover.Probing, time.Now())
	if err := l.Rebind(core.Proof{}, true); err != nil {
		r.s.Log.Warn("cannot probe a rail", "peer", r.name, "rail", l.Rail.Name(), "err", rlimit.Advise(err))
		r.later(l, r.failover.Unprobed(&l.Link), "another try")
	}
}

// cameUp: the link's probe is through. What waits for links that don't work is given to it, and what is under way may use it.
func (r *Session) cameUp(l *link.Link, epoch uint64) {
	r.mu.Lock()
	if !r.owns(l) || l.Phase != failover.Probing || epoch != uint64(l.Epoch) || l.Core.Stats().State != core.LinkProbing {
		r.mu.Unlock()
		return
	}
	r.change(func() {
		r.failover.CameUp(&l.Link)
		l.ShutDoor()
		r.rehome()
		l.Core.Up()
		for _, o := range r.links {
			if o.Up && (o.Phase == failover.Probing || o.Phase == failover.Resting) {
				o.Core.Yield(core.Proof{})
			}
		}
	})
	if l.Late {
		l.Late = false
		r.askAgain(l.Peer)
	}
	r.peer.Kick()
	r.announce()
	r.mu.Unlock()
	r.s.Log.Info("rail in use", "peer", r.name, "rail", l.Rail.Name(), "link", l.Num, "epoch", epoch)
	r.peer.Join(l.Core)
}
