package session

import (
	"errors"
	"log/slog"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/host"
	"gorail/backend/provider"
	"gorail/backend/wire"
)

// Fenced handles the target's answer: the target has closed its endpoint, and no older operation of ours can land any
// more. Implements peer.InitiatorHandler.
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
	case f.ID == 0: // the target requests a fence
		if !l.Up {
			r.startLink(l)
		} else if l.Phase != Fencing {
			r.fence(l, "the peer's endpoint has failed")
		}
	case r.awaited(l, f):
		c.answered(l, f)
	}
}

// awaited returns true, once, if the target's answer is the one that a link waits for. Under mu.
func (r *Initiator) awaited(l *Link, f wire.Fenced) bool {
	if l.Phase != Fencing || l.Epoch != f.Epoch || f.ID == 0 || f.ID != l.FenceID {
		return false
	}
	l.FenceID = 0
	return true
}

// answered continues a link after the target's answer to its FENCE. Under mu.
func (c *conn) answered(l *Link, f wire.Fenced) {
	r, ep := c.r, l.EP
	if l.Up {
		r.silenced(l, core.Proof{Next: f.NextSeq, Have: f.Have})
	}
	switch {
	case l.Closed && l.Rail.Away.Load(): // the follower of addresses comes back to it: RailsMoved, DeviceChanged
	case l.Closed:
		r.fence(l, "another endpoint is needed")
	case ep == nil:
		c.opened(l, f, errors.New("our endpoint could not be opened"))
	case len(f.Addr) == 0:
		c.opened(l, f, errors.New("the peer could not open another endpoint"))
	default:
		sec := c.channel().Security(l)
		l.Connects.Do(r.s.Life, func() { // on RoCE the kernel may resolve the neighbour for a second: posts and other answers go on
			r.mu.Lock()
			waits := r.waitsFor(l, f.Epoch, ep)
			r.mu.Unlock()
			if !waits {
				return
			}
			err := r.s.Links.Reach(ep, f.Addr, sec)
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.waitsFor(l, f.Epoch, ep) {
				c.opened(l, f, err)
			}
		})
	}
}

// silenced handles a link whose old endpoints are closed at both ends: its transfers that have failed end, and its work goes to the
// links that work. If none works, the link keeps its work until one does. Under mu.
func (r *Initiator) silenced(l *Link, proof core.Proof) {
	l.Answer = &proof
	backOff := func() {
		if l.Closed {
			l.Enter(BackingOff, time.Now())
		}
	}
	if !r.failover.OthersWork(&l.LinkState) {
		l.Core.Abandon(true)
		r.change(backOff)
		return
	}
	if !l.DownLogged {
		r.logDown(l, nil)
	}
	r.changeAndKick(func() {
		backOff()
		r.handOver()
	})
}

// waitsFor returns true if a link still waits for the connection of an endpoint of this epoch. Under mu.
func (r *Initiator) waitsFor(l *Link, epoch uint32, ep provider.Endpoint) bool {
	return r.owns(l) && l.Phase == Fencing && l.Epoch == epoch && l.EP == ep
}

// opened uses a link whose endpoints are open and connected, or which has none: err says why. Under mu.
func (c *conn) opened(l *Link, f wire.Fenced, err error) {
	r := c.r
	l.NoteEnds()
	if !l.Up {
		r.started(l, err)
		return
	}
	if err := r.resumeLink(l, core.Proof{Next: f.NextSeq, Have: f.Have}, err); err != nil {
		go c.GiveUp(err)
	}
}

// resumeLink uses a quiet link again, or backs the link off while others do its work. err is why the link cannot be used. The
// returned error ends the session. Under mu.
func (r *Initiator) resumeLink(l *Link, proof core.Proof, err error) error {
	alone := !r.failover.OthersWork(&l.LinkState)
	if alone && err == nil {
		r.changeAndKick(func() {
			if err = l.Rebind(proof, !l.Proved); err == nil && !r.failover.Renewed(&l.LinkState) {
				r.handOver()
			}
		})
		if err == nil && l.Phase == Working {
			l.Log(r.s.Log, slog.LevelInfo, "link renewed", "peer", r.name, "rail", l.Rail.Name(), "link", l.Num, "epoch", l.Epoch)
		}
		if err == nil {
			return nil
		}
	}
	if alone && !r.failover.AnyUsable(&l.LinkState) && !l.Rail.Away.Load() { // of one that is away the follower of addresses decides: RailsMoved, RailsGone
		return err
	}
	if alone {
		l.DownLogged = true
		l.Log(r.s.Log, slog.LevelWarn, "rail down, and no other rail is available", "peer", r.name, "rail", l.Rail.Name(), "err", host.Advise(err),
			errcode.Key, errcode.RailDown)
	} else if err != nil || !l.DownLogged {
		r.logDown(l, err)
	}
	retry := r.handBack(l, proof, err)
	switch epoch := l.Epoch; {
	case retry.Fence:
		r.fenceAfter(l, retry.After, "retry")
	case retry.After == 0:
		r.probe(l)
	default:
		r.s.Life.After(retry.After, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.owns(l) && l.Epoch == epoch && l.Phase == BackingOff {
				r.probe(l)
			}
		})
	}
	return nil
}

// handBack backs a quiet link off, and hands its work to the links that work. err is why the link cannot be used. Under mu.
func (r *Initiator) handBack(l *Link, proof core.Proof, err error) (retry Retry) {
	r.changeAndKick(func() {
		l.Core.HandBack(proof) // another rail must not send again what has arrived
		retry = r.failover.BackOff(&l.LinkState, err)
	})
	return retry
}

// handOver gives the work of links that do not work to those that do. A link whose FENCE has no answer keeps its work: its operations
// may still land. Under mu, in a change.
func (r *Initiator) handOver() {
	r.moveNotifLink()
	for _, o := range r.links {
		switch {
		case !o.Up || o.Phase == Working:
		case o.Answer != nil:
			o.Core.HandBack(*o.Answer) // another rail must not send again what has arrived
		case o.Phase == Probing || o.Phase == BackingOff:
			o.Core.HandBack(core.Proof{})
		}
	}
}

// logDown logs that other rails carry the work of a link. err is why the link cannot be used. Under mu.
func (r *Initiator) logDown(l *Link, err error) {
	l.DownLogged = true
	l.Log(r.s.Log, l.Level(), "rail down; other rails carry its work", "peer", r.name, "rail", l.Rail.Name(), "link", l.Num, "pause", l.Pause, "err", err,
		errcode.Key, errcode.RailDown)
}

// probe tries a link that has backed off. Under mu.
func (r *Initiator) probe(l *Link) {
	l.Enter(Probing, time.Now())
	if err := l.Rebind(core.Proof{}, true); err != nil {
		r.s.Log.Warn("cannot probe a rail", "peer", r.name, "rail", l.Rail.Name(), "err", host.Advise(err))
		r.fenceAfter(l, r.failover.CannotProbe(&l.LinkState), "retry")
	}
}

// probeAnswered handles an answered probe. It gives the link the work of links that do not work. Transfers in progress may use
// the link.
func (r *Initiator) probeAnswered(l *Link, epoch uint64) {
	r.mu.Lock()
	if !r.owns(l) || l.Phase != Probing || epoch != uint64(l.Epoch) || l.Core.Stats().State != core.LinkProbing {
		r.mu.Unlock()
		return
	}
	r.changeAndKick(func() {
		r.failover.ProbeAnswered(&l.LinkState)
		l.ShutFilter()
		l.Core.Up()
		r.handOver()
	})
	if l.CameUpLate {
		l.CameUpLate = false
		r.askAgain(l.Peer)
	}
	r.announce()
	r.mu.Unlock()
	l.Log(r.s.Log, slog.LevelInfo, "rail in use", "peer", r.name, "rail", l.Rail.Name(), "link", l.Num, "epoch", epoch)
	r.peer.Join(l.Core)
}
