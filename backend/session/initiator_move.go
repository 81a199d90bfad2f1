package session

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"gorail/backend/rails"
	"gorail/backend/wire"
)

// RailsMoved handles rails of ours that have another address since their interface has lost the old one: their connections are dead. Every link over
// them gets a connection from the new address, and so does the control channel.
func (s *Initiators) RailsMoved(over []*rails.Rail, was netip.Addr, why string) {
	for _, r := range s.All() {
		r.peer.Events.Do(s.Life, func() { r.railsMoved(over, was, why) })
	}
}

func (r *Initiator) railsMoved(over []*rails.Rail, was netip.Addr, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reconnect() // if it is suspended: the peer must hear where we are now
	if r.conn.out != nil {
		r.conn.out.Suspect(was, why)
	}
	for _, l := range r.links {
		switch {
		case !slices.Contains(over, l.Rail):
		case !l.Up:
			r.startLink(l)
		case l.Phase == Working || l.Phase == Probing || l.Phase == BackingOff:
			l.Pause = 0
			l.wake()
			r.fence(l, why)
		}
	}
}

// deviceChanged fences the links over a device that went down, if other rails can do their work. It retries the links
// over a device that came up.
func (r *Initiator) deviceChanged(name string, up bool, addr netip.Addr, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !up && addr.IsValid() && r.conn.out != nil {
		r.conn.out.Suspect(addr, why)
	}
	for _, l := range r.links {
		switch {
		case l.Rail.Device().Name != name:
		case !l.Up && up:
			r.startLink(l)
		case r.failover.DeviceChanged(&l.LinkState, up):
			l.wake()
			r.fence(l, why)
		}
	}
}

// RailsLost handles rails of ours whose interface has lost their address and has no other yet. Their connections are dead: nothing is posted on them
// any more. What other rails can do, they do.
func (s *Initiators) RailsLost(over []*rails.Rail, was netip.Addr, why string) {
	for _, r := range s.All() {
		r.peer.Events.Do(s.Life, func() { r.railsLost(over, was, why) })
	}
}

func (r *Initiator) railsLost(over []*rails.Rail, was netip.Addr, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn.out != nil {
		r.conn.out.Suspect(was, why)
	}
	for _, l := range r.links {
		if slices.Contains(over, l.Rail) && (l.Phase == Working || l.Phase == Probing) {
			l.Pause = FirstBackoff
			r.fence(l, why)
		}
	}
}

// RailsGone suspends the sessions whose rails have no address. While that lasts, posts end
// with the error at once.
func (s *Initiators) RailsGone(why error) {
	for _, r := range s.All() {
		r.peer.Events.Do(s.Life, func() {
			if c := r.servedByNone(); c != nil {
				c.GiveUp(why)
			}
		})
	}
}

// servedByNone returns the session's connection if no link can work before a rail of ours has an address.
func (r *Initiator) servedByNone() *conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	uses := false
	for _, l := range r.links {
		lost := l.Rail.Lost() != nil
		if !lost && l.Phase == Working && l.Up {
			return nil
		}
		uses = uses || lost
	}
	if r.state == ready && uses || r.state == connecting && r.homeless() != nil {
		return r.conn
	}
	return nil
}

// homeless returns why no rail of ours can serve the session: their interfaces have no address. nil: one may. Under mu.
func (r *Initiator) homeless() (why error) {
	for _, p := range r.linkPairs {
		if why = r.s.Links.Rails.List[p.Own].Lost(); why == nil {
			return nil
		}
	}
	return why
}

// PeerMoved takes the new control addresses of an engine, which it has told in a session in which it is the initiator. nil receivers have no sessions.
func (s *Initiators) PeerMoved(engine wire.EngineID, control []string) {
	if s == nil {
		return
	}
	for _, r := range s.All() {
		if r.blob.Engine != engine {
			continue
		}
		if r.told.Swap(&control) == nil { // else an event waits: a peer may say more than we take in
			r.peer.Events.Do(s.Life, r.peerMoved)
		}
	}
}

func (r *Initiator) peerMoved() {
	control := *r.told.Swap(nil)
	r.mu.Lock()
	r.noteMoved(control)
	out := r.conn.out
	r.mu.Unlock()
	if out != nil {
		out.Moved(control)
	}
}

// Moved takes the new control addresses of the target. Implements peer.InitiatorHandler.
func (c *conn) Moved(control []string) {
	r := c.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.current() {
		r.noteMoved(control)
	}
}

// noteMoved keeps the addresses for later dials. The log has the first change as a line: a peer can say many. Under mu.
func (r *Initiator) noteMoved(control []string) {
	level := slog.LevelDebug
	if r.control == nil {
		level = slog.LevelInfo
	}
	r.control = control
	r.s.Log.Log(context.Background(), level, "a peer has other control addresses", "peer", r.name, "control", control)
}

// whereabouts returns the peer's control addresses if they are others than its blob says. Under mu.
func (r *Initiator) whereabouts() []string {
	if r.control == nil && r.s.Whereabouts != nil {
		return r.s.Whereabouts(r.blob.Engine)
	}
	return r.control
}
