package session

// What becomes of a link of ours that fails, in the order in which it happens. Each event is decided once, by Failover. The session carries
// the decision out.

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"syscall"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/host"
	"gorail/backend/provider"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/backend/wire"
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

// owns returns true if the link belongs to the ready session. Timers and events may come for links of an earlier
// session. Under mu.
func (r *Initiator) owns(l *Link) bool { return r.state == ready && slices.Contains(r.links, l) }

// failed handles a link that reported an error.
func (r *Initiator) failed(l *Link, epoch uint64, errno syscall.Errno) {
	r.mu.Lock()
	defer r.mu.Unlock()
	level := l.Level()
	if level == slog.LevelInfo && host.Exhausted(errno) && !errors.Is(l.Fault, errno) { // a warning each time would say nothing new
		level = slog.LevelWarn
	}
	fault := host.Advise(errno)
	l.Log(r.s.Log, level, "link error", "peer", r.name, "rail", l.Rail.Name(), "errno", int32(errno), "err", fault)
	if !r.owns(l) || !l.Up || epoch != uint64(l.Epoch) { // or the failed endpoint is closed already
		return
	}
	l.Fault = fault
	r.cannotConnect(l) // unless it is proved
	r.carryOut(l, r.failover.Failed(&l.LinkState, l.Count(), len(r.revokes) > 0, l.Shared()), cause{why: "completion error"})
}

// fence stops a link, and has its endpoints closed at both ends. After the answer, incomplete operations are replayed, on other links where
// there are any. If the peer does not answer, the control channel reports the loss. Under mu.
func (r *Initiator) fence(l *Link, why string) {
	if r.state == ready {
		r.carryOut(l, r.failover.Fence(&l.LinkState, l.Shared()), cause{why: why})
	}
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

// cause is what a decision is about.
type cause struct {
	why    string      // the reason of a fence, for the log
	answer wire.Fenced // the peer's to a FENCE; empty: there is none
	err    error       // why the link cannot be used; nil: it can
}

// proof is what the peer's answer proves.
func (c *cause) proof() core.Proof { return core.Proof{Next: c.answer.NextSeq, Have: c.answer.Have} }

// carryOut does what a decision says about a link, in the order of Actions. Under mu.
func (r *Initiator) carryOut(l *Link, a Actions, c cause) {
	if a.Pause > 0 {
		r.fenceAfter(l, a.Pause, c.why)
	}
	if a.GiveUp {
		go r.conn.GiveUp(c.err)
	}
	if a.LogDown {
		l.Log(r.s.Log, l.Level(), "rail down; other rails carry its work", "peer", r.name, "rail", l.Rail.Name(), "link", l.Num, "pause", l.Pause, "err", c.err,
			errcode.Key, errcode.RailDown)
	}
	if a.LogAlone {
		l.Log(r.s.Log, slog.LevelWarn, "rail down, and no other rail is available", "peer", r.name, "rail", l.Rail.Name(), "err", host.Advise(c.err),
			errcode.Key, errcode.RailDown)
	}
	if a.Abandon || a.Rebind || a.HandBack || a.HandOver {
		if err := r.moveWork(l, a, c); err != nil {
			c.err = err
			r.carryOut(l, r.failover.Opened(&l.LinkState, err, l.Rail.Away.Load()), c)
			return
		}
	}
	if a.First {
		l.Fenced()
	}
	if a.Drain {
		r.drain(l, c.why)
	}
	if a.Fence {
		r.closeAndAsk(l, a, c.why)
	}
	if a.Connect {
		r.connectAgain(l, c)
	}
	if a.Retry {
		r.retryAfter(l, a)
	}
}

// moveWork ends, keeps or hands over what the link had posted: no post runs meanwhile. The error of a link that cannot be bound to its new
// endpoint is returned. Under mu.
func (r *Initiator) moveWork(l *Link, a Actions, c cause) (err error) {
	r.changeAndKick(func() {
		if a.Abandon {
			l.Core.Abandon(true)
		}
		if a.Rebind {
			if err = l.Rebind(c.proof(), !l.Proved); err != nil {
				return
			}
			r.failover.Renewed(&l.LinkState)
		}
		if a.HandBack {
			l.Core.HandBack(c.proof()) // another rail must not send again what has arrived
		}
		if a.HandOver {
			r.handOver()
		}
	})
	if err == nil && a.Rebind && l.Phase == Working {
		l.Log(r.s.Log, slog.LevelInfo, "link renewed", "peer", r.name, "rail", l.Rail.Name(), "link", l.Num, "epoch", l.Epoch)
	}
	return err
}

// change calls f to change what posts read (links, keys, state): no post runs meanwhile. Then transfers get one finished view. Under mu.
func (r *Initiator) change(f func()) { r.publish(f, false) }

// changeAndKick is change that also starts waiting transfers before later posts. Under mu.
func (r *Initiator) changeAndKick(f func()) { r.wantKeys(r.publish(f, true)) }

// publish is change. kick: waiting transfers start, too; wants are the regions whose keys they lack. Under mu.
func (r *Initiator) publish(f func(), kick bool) (wants []*region.Region) {
	r.peer.Pause()
	defer func() { // also if f panics: posts go on
		wants = r.peer.Publish(r.transfersView(), kick)
		r.notePath()
	}()
	f()
	return nil
}

// transfersView is what transfers see of the session. Under mu.
func (r *Initiator) transfersView() transfer.View {
	v := transfer.View{State: r.state, Leaving: r.leaving != nil, Why: r.err, Code: r.code}
	if r.state != ready {
		return v
	}
	v.Session, v.Stage, v.Busy = r.sess.ID, r.conn.requests.Stage, r.conn.out.Busy
	for _, l := range r.links {
		if l.Up && (!r.wide || l.Proved) { // a transfer of a wide engine waits for links that begin: those that come later are not its own
			v.Routes = append(v.Routes, transfer.Route{Link: l.Core, Rail: l.Rail, Peer: l.Peer, Epoch: l.Epoch,
				Working: l.Phase == Working, Proved: l.Proved, Away: l.Away()})
		}
	}
	return v
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

// closeAndAsk closes our endpoint of a link, and sends a FENCE, with the address of another one if it opens one. Under mu.
func (r *Initiator) closeAndAsk(l *Link, a Actions, why string) {
	r.change(func() {}) // the link is fencing
	if a.Unproved {
		r.logUnproved(l, why)
	}
	r.announce()
	l.Core.Stop()
	r.moveNotifLink() // before closing the endpoint, which may take long
	if err := r.s.Links.Quiesce(l); err != nil && !errors.As(err, new(*provider.GPUBusy)) {
		r.peer.Leak()
	}
	var addr []byte
	if !a.Open || l.shelved {
		l.Epoch++
	} else if err := l.Renew(); err == nil {
		addr = l.EP.Addr()
	} else if l.Rail.Away.Load() { // its interface has lost the address: with another one, or this one again, the next fence opens
		l.Closed = true
	} else if r.s.Log.Error("cannot open a new endpoint for a link", "peer", r.name, "rail", l.Rail.Name(), "err", err); a.Last {
		go r.conn.GiveUp(err)
		return
	}
	if a.First {
		l.Log(r.s.Log, l.Level(), "fencing a link", "peer", r.name, "rail", l.Rail.Name(), "link", l.Num, "reason", why)
	}
	if a.Suspect && len(r.peer.Pairs()) > 1 && time.Since(r.conn.resumed) > calmFor {
		r.conn.out.Suspect(l.Rail.Addr(), "a rail over the same address is fenced: "+why)
	}
	r.sendFence(l, addr)
}

// logUnproved logs a link that was not established while others were. The link is retried. Under mu.
func (r *Initiator) logUnproved(l *Link, why string) {
	level := slog.LevelWarn
	switch {
	case l.OneHost(): // nothing is to be done
		level = slog.LevelInfo
	case l.tried && !l.alone: // other pairs are tried
		level = slog.LevelDebug
	}
	r.s.Log.Log(context.Background(), level, "rail not connected; other rails carry its work, and the link is retried", "peer", r.name, "rail", l.Rail.Name(), "reason", why, "err", l.Reason(),
		errcode.Key, errcode.RailNotConnected)
}

// sendFence sends a FENCE with the address of our new endpoint, or without one. Under mu.
func (r *Initiator) sendFence(l *Link, addr []byte) {
	l.FenceID = r.s.Life.NextID()
	var begin []wire.Pair
	if l.added && !l.Up {
		begin = []wire.Pair{{Rail: uint8(l.Peer), Own: uint8(l.Rail.Index), ID: l.ID}}
	}
	r.conn.out.Fence(l.FenceID, uint8(l.Num), l.Epoch, addr, begin...)
}

// drain stops a link on a shared endpoint, and waits until everything posted has completed. Transfers with a failed operation then end in an
// error; the others continue. Under mu.
func (r *Initiator) drain(l *Link, why string) {
	l.Log(r.s.Log, slog.LevelInfo, "draining a link: a shared endpoint cannot be fenced", "peer", r.name, "rail", l.Rail.Name(), "reason", why)
	r.change(func() {
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
			r.opened(l, cause{})
		}
	}
	r.s.Life.After(0, look)
}

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
		if l.added && !l.Up {
			l.PeerID = f.Link
		}
		a, answered := r.failover.Answered(&l.LinkState, l.Rail.Away.Load()), cause{why: "another endpoint is needed", answer: f}
		if proof := answered.proof(); l.Up {
			l.Answer = &proof
		}
		r.carryOut(l, a, answered)
	}
}

// awaited returns true, once, if the target's answer is the one that a link waits for. Under mu.
func (r *Initiator) awaited(l *Link, f wire.Fenced) bool {
	if l.Phase != Fencing || l.Epoch != f.Epoch || f.ID == 0 || f.ID != l.FenceID {
		return false
	}
	l.FenceID = 0
	r.failover.Answer = time.Since(l.Since)
	return true
}

// connectAgain connects a link's new endpoint to the peer's. On RoCE the kernel may resolve the neighbour for a second: posts and other
// answers go on. Under mu.
func (r *Initiator) connectAgain(l *Link, c cause) {
	ep := l.EP
	switch {
	case ep == nil:
		c.err = errors.New("our endpoint could not be opened")
	case len(c.answer.Addr) == 0:
		c.err = errors.New("the peer could not open another endpoint")
	}
	if c.err != nil {
		r.opened(l, c)
		return
	}
	sec := r.conn.channel().Security(l)
	l.Connects.Do(r.s.Life, func() {
		r.mu.Lock()
		waits := r.waitsFor(l, c.answer.Epoch, ep)
		r.mu.Unlock()
		if !waits {
			return
		}
		err := r.s.Links.Reach(ep, c.answer.Addr, sec)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.waitsFor(l, c.answer.Epoch, ep) {
			c.err = err
			r.opened(l, c)
		}
	})
}

// waitsFor returns true if a link still waits for the connection of an endpoint of this epoch. Under mu.
func (r *Initiator) waitsFor(l *Link, epoch uint32, ep provider.Endpoint) bool {
	return r.owns(l) && l.Phase == Fencing && l.Epoch == epoch && l.EP == ep
}

// opened uses a link whose endpoints are open and connected, or which has none: c.err says why. Under mu.
func (r *Initiator) opened(l *Link, c cause) {
	l.NoteEnds()
	if !l.Up {
		r.started(l, c.err)
		return
	}
	r.carryOut(l, r.failover.Opened(&l.LinkState, c.err, l.Rail.Away.Load()), c)
}

// retryAfter tries a link that backs off again. Under mu.
func (r *Initiator) retryAfter(l *Link, a Actions) {
	switch epoch := l.Epoch; {
	case l.shelved:
	case a.Refence:
		r.fenceAfter(l, a.After, "retry")
	case a.After == 0:
		r.probe(l)
	default:
		r.s.Life.After(a.After, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.owns(l) && l.Epoch == epoch && l.Phase == BackingOff {
				r.probe(l)
			}
		})
	}
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
		l.wake()
		l.Core.Up()
		r.handOver()
	})
	if l.CameUpLate {
		l.CameUpLate = false
		r.askWider(1 << l.Peer)
	}
	r.noteReach()
	r.shelve()
	r.settlePairs()
	r.announce()
	r.mu.Unlock()
	l.Log(r.s.Log, slog.LevelInfo, "rail in use", "peer", r.name, "rail", l.Rail.Name(), "link", l.Num, "epoch", epoch)
	r.peer.Join(l.Core)
	if l.added { // a transfer that began before it waits for others
		r.peer.Relink()
	}
}

// fenceStuck fences stuck links: see Failover.Watch. The sweeper calls it.
func (r *Initiator) fenceStuck() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != ready {
		return
	}
	counts := make([]Count, len(r.links))
	for i, l := range r.links {
		if l.Phase == Working {
			counts[i] = l.Count()
		}
	}
	r.lookApart()
	r.settlePairs()
	for _, s := range r.failover.Watch(counts) {
		r.links[s.Link].Stalled()
		r.fence(r.links[s.Link], s.Why)
	}
}
