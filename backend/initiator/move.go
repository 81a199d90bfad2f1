package initiator

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"gorail/backend/failover"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// RailsMoved handles rails of ours that have another address since their interface has lost the old one: their connections are dead. Every link over
// them gets a connection from the new address, and so does the control channel.
func (s *Sessions) RailsMoved(over []*rails.Rail, was netip.Addr, why string) {
	for _, r := range s.All() {
		r.peer.Events.Do(s.Life, func() { r.railsMoved(over, was, why) })
	}
}

func (r *Session) railsMoved(over []*rails.Rail, was netip.Addr, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn.out != nil {
		r.conn.out.Suspect(was, why)
	}
	for _, l := range r.links {
		switch {
		case !slices.Contains(over, l.Rail):
		case !l.Up:
			r.startLink(l)
		case l.Phase == failover.Working || l.Phase == failover.Probing || l.Phase == failover.BackingOff:
			l.Pause = 0
			r.fence(l, why)
		}
	}
}

// RailsGone suspends the sessions that only rails without an address serve. The next post connects again.
func (s *Sessions) RailsGone(over []*rails.Rail, why error) {
	for _, r := range s.All() {
		r.peer.Events.Do(s.Life, func() {
			if c := r.servedOnlyBy(over); c != nil {
				c.GiveUp(why)
			}
		})
	}
}

// servedOnlyBy returns the session's connection if it is ready, and no link works but those over these rails.
func (r *Session) servedOnlyBy(over []*rails.Rail) *conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	uses := false
	for _, l := range r.links {
		if !slices.Contains(over, l.Rail) {
			if l.Phase == failover.Working && l.Up {
				return nil
			}
			continue
		}
		uses = true
	}
	if r.state != ready || !uses {
		return nil
	}
	return r.conn
}

// PeerMoved takes the new control addresses of an engine, which it has told in a session in which it is the initiator. nil receivers have no sessions.
// Without TLS nobody has proved that it is that engine.
func (s *Sessions) PeerMoved(engine wire.EngineID, control []string) {
	if s == nil || !s.own.TLS {
		return
	}
	for _, r := range s.All() {
		if r.blob.Engine == engine {
			r.peer.Events.Do(s.Life, func() { r.peerMoved(control) })
		}
	}
}

func (r *Session) peerMoved(control []string) {
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
func (r *Session) noteMoved(control []string) {
	level := slog.LevelDebug
	if r.control == nil {
		level = slog.LevelInfo
	}
	r.control = control
	r.s.Log.Log(context.Background(), level, "a peer has other control addresses", "peer", r.name, "control", control)
}

// whereabouts returns the peer's control addresses if they are others than its blob says. Under mu.
func (r *Session) whereabouts() []string {
	if r.control == nil && r.s.Whereabouts != nil && r.s.own.TLS {
		return r.s.Whereabouts(r.blob.Engine)
	}
	return r.control
}
