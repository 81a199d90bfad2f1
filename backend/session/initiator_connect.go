package session

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/host"
	"gorail/backend/peer"
	"gorail/backend/region"
)

// usable returns true if the application can post to the peer, now or after a reconnect.
func (r *Initiator) usable() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.leaving == nil && (r.state == connecting || r.state == ready || r.state == suspended)
}

// connect begins the first session. Older sessions with the same engine that still deliver end first: the peer would end
// them otherwise, and notifications keep their order.
func (r *Initiator) connect() {
	if r.s.olderThan(r) == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.dial()
		return
	}
	r.s.Life.Go(func() {
		for old := r.s.olderThan(r); old != nil; old = r.s.olderThan(r) {
			<-old.ended
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.dial()
	})
}

// dial begins a connection. Under mu.
func (r *Initiator) dial() {
	if r.state == connecting && r.conn.out == nil {
		to := r.blob
		if at := r.whereabouts(); at != nil {
			to.Control = at
		}
		r.conn.out = r.s.node.Dial(to, r.after, r.conn)
		r.dialed = time.Now()
	}
}

// reconnect begins another connection to a suspended peer. It requests the keys again; everything else is unchanged. While no rail has an address, the
// session stays suspended. Under mu.
func (r *Initiator) reconnect() {
	if r.state != suspended || r.s.Life.Ending() {
		return
	}
	if why := r.homeless(); why != nil {
		if r.err != why { // the same value is published already
			r.change(func() { r.err = why })
		}
		r.redialLater()
		return
	}
	switch {
	case r.wide:
		r.linkPairs = r.withSlots(r.firstPairs())
	case r.known() != nil && !r.leftHost:
		if pairs := r.pairOffered(); len(pairs) > 0 {
			r.use(pairs)
		}
	}
	r.s.Log.Log(context.Background(), r.dials.dialing(), "connecting to a peer again", "peer", r.name, "after", r.err)
	r.change(func() { r.state, r.err, r.conn = connecting, nil, newConn(r) })
	r.dial()
}

// Reconnect begins another connection if the peer is suspended.
func (r *Initiator) Reconnect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reconnect()
}

// Admit implements transfer.Session.
func (r *Initiator) Admit(add func() []*region.Region) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.postable(); err != nil {
		return err
	}
	wants := add()
	if r.state == ready {
		r.wantKeys(append(wants, r.peer.Kick()...))
		r.pull()
	}
	return nil
}

// postable returns an error if the application cannot post to the peer. It reconnects a suspended peer. Under mu.
func (r *Initiator) postable() error {
	r.reconnect()
	switch {
	case r.leaving != nil:
		return errcode.PeerRemoved.Errorf("peer %q: %w", r.name, r.leaving.why)
	case r.state == lost:
		return r.code.Errorf("peer %q is gone: %w", r.name, r.err)
	case r.state == closed:
		return errcode.PeerRemoved.Errorf("peer %q: %w", r.name, r.err)
	case r.state == suspended:
		return errcode.SessionLost.Errorf("peer %q: %w", r.name, r.err)
	}
	return nil
}

// suspend ends a session that another session may follow. The channel is the one of down. Under mu.
func (r *Initiator) suspend(err error) (quiet <-chan struct{}) {
	if r.state != connecting && r.state != ready {
		return nil
	}
	msg, level := "session with a peer suspended", r.dials.lost(r.state == ready)
	if r.state == connecting {
		msg = "peer not reached"
	}
	r.change(func() { r.state, r.code, r.err = suspended, errcode.SessionLost, host.Advise(err) }) // first: posts must stop
	if r.leaving != nil {
		r.leaving.drainSent = false // the next session asks its target again
	}
	r.keepNotifs()
	if r.unsent() {
		msg += "; connecting again for its notifications"
	} else {
		msg += "; the next post or notification connects again"
	}
	r.s.Log.Log(context.Background(), level, msg, "peer", r.name, "rails", strings.Join(r.inUse(), ","), "failed", r.dials.n,
		"kept_notifications", len(r.notifs), "err", r.err, errcode.Key, r.code)
	quiet = r.down(errcode.SessionLost)
	r.change(r.dropKeys)
	r.retireRings()
	r.redialLater()
	return quiet
}

// lose ends the last session with a dead peer. Under mu.
func (r *Initiator) lose(err error) {
	if r.state == closed || r.state == lost {
		return
	}
	level := slog.LevelWarn
	if errors.Is(err, peer.ErrPeerClosed) {
		level = slog.LevelInfo // the peer sent a Bye
	}
	was := r.state
	r.change(func() { r.state, r.code, r.err = lost, errcode.PeerGone, host.Advise(err) })
	r.s.Log.Log(context.Background(), level, "peer lost", "peer", r.name, "rails", strings.Join(r.inUse(), ","), "err", r.err, errcode.Key, r.code)
	if was != suspended {
		r.down(errcode.PeerGone)
	}
	r.retireRings()
	r.dropNotifs()
}

// down drops the links with Set.Drop, and ends everything that waits. It closes the channel when nothing accesses
// memory of either side any more. nil: nothing accesses it now. Under mu, with the state published.
func (r *Initiator) down(code *errcode.Code) (quiet <-chan struct{}) {
	st := int32(code.Status)
	r.conn.requests.End()
	if r.conn.forget != nil {
		r.conn.forget()
		r.conn.forget = nil
	}
	if r.state != suspended && r.hasSess && r.sess.Queued() > 0 { // else the notifications belong to transfers that fail
		r.s.Log.Warn("notifications lost with the session", "peer", r.name, "bytes", r.sess.Queued(), "err", r.err, errcode.Key, errcode.NotifsLost)
	}
	r.s.Past.Add(r.view(), r.state.String())
	sess, bye := core.Session{}, (*parting)(nil)
	if r.hasSess {
		sess = r.sess
		if p := r.newParting(); p != nil {
			r.conn.parting, bye = p, p
		}
	}
	quiet = r.s.Links.Drop(r.links, sess, st, bye)
	r.hasSess = false
	r.peer.FinalizeDeferred()
	r.links, r.failover.Links, r.notifLink, r.apart = nil, nil, nil, nil
	r.unpair()
	r.peer.EndWaiting(code)
	r.revokes = nil
	return quiet
}

// close ends the session on purpose. With a disconnection, it ends the session only while the application has not loaded
// the peer again.
func (r *Initiator) close(why error, d *disconnection) {
	r.mu.Lock()
	was, out := r.state, r.conn.out
	if was == closed || d != nil && r.leaving != d {
		r.mu.Unlock()
		return
	}
	connected := was == connecting || was == ready
	r.change(func() {
		if r.state = closed; connected {
			r.err = why
		}
	})
	var quiet <-chan struct{}
	if connected {
		quiet = r.down(errcode.Disconnected)
	}
	r.dropNotifs()
	r.retireRings()
	r.retireLoaded()
	r.mu.Unlock()
	if out != nil && connected {
		r.goodbye(out, quiet, why)
	}
}

// goodbye sends the end of the session to the peer after the links are quiet. The peer forgets our address with the
// session, so the Bye must follow the operations on their way to the peer.
func (r *Initiator) goodbye(out *peer.Out, quiet <-chan struct{}, why error) {
	if quiet == nil {
		out.Close(why.Error())
		return
	}
	r.s.Life.Go(func() {
		select {
		case <-quiet:
		case <-time.After(max(GoodbyeWait, r.s.Options.PeerTimeout)):
		}
		out.Close(why.Error())
	})
}

// redialLater schedules a reconnect for the kept notifications, or drops them after peer_timeout. Under mu, with the
// session lost.
func (r *Initiator) redialLater() {
	if !r.unsent() {
		return
	}
	now := time.Now()
	if r.keptUntil.IsZero() {
		r.keptUntil = now.Add(r.s.Options.PeerTimeout)
	}
	if now.After(r.keptUntil) || r.s.Life.Ending() {
		r.dropNotifs()
		return
	}
	if r.redials {
		return
	}
	r.redials = true
	r.s.Life.After(redialNotifs, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.redials = false
		r.reconnect()
	})
}

// GiveUp ends a session that a failure of ours or of the peer has made useless. GiveUp and the other methods of conn
// implement staging.Session.
func (c *conn) GiveUp(err error) {
	r := c.r
	if !r.s.Life.Enter() {
		return
	}
	defer r.s.Life.Leave()
	r.mu.Lock()
	var quiet <-chan struct{}
	if c.current() {
		quiet = r.suspend(err)
	}
	out := c.out
	r.mu.Unlock()
	if out != nil {
		r.goodbye(out, quiet, err)
	}
}

// logEvery is the interval of the log lines about an unreachable peer while the application keeps trying.
const logEvery = time.Minute

// failedDials limits the log lines about an unreachable peer.
type failedDials struct {
	n int // dials since the last session that was ready
	// last log line at level WARN
	logged time.Time
}

// lost counts the end of a session, and returns the level to log it at.
func (f *failedDials) lost(wasReady bool) slog.Level {
	if f.n++; wasReady {
		f.n = 0
	}
	if f.n > 1 && time.Since(f.logged) < logEvery {
		return slog.LevelDebug
	}
	f.logged = time.Now()
	return slog.LevelWarn
}

// dialing is the level of the log line before a dial.
func (f *failedDials) dialing() slog.Level {
	if f.n > 0 {
		return slog.LevelDebug // the result of the dial is logged
	}
	return slog.LevelInfo
}
