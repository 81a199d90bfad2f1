package engine

import (
	"time"

	"gorail/backend/fastpath"
	"gorail/backend/provider"
)

// link is a session's endpoint on one rail, on either side. Guarded by its owner's mu.
type link struct {
	id      uint64
	rail    *railState
	peer    int // the peer's rail
	ep      provider.Endpoint
	l       fastpath.Link
	up      bool   // l is there
	epoch   uint32 // grows with every endpoint
	fencing bool   // a FENCE is under way
	good    uint64 // completions without error at the last failure
	pause   time.Duration
	remote  *remote
	target  *target
}

// openLink opens an endpoint; the fastpath link follows when the peer's address is known.
func (e *Engine) openLink(railIdx, peerRail int) (*link, error) {
	r := e.rails[railIdx]
	ep, err := r.OpenEndpoint()
	if err != nil {
		return nil, err
	}
	return &link{id: e.ids.Add(1), rail: r, peer: peerRail, ep: ep}, nil
}

// connect names the peer's endpoint and starts the link.
func (e *Engine) connect(l *link, s fastpath.Session, addr []byte, role fastpath.Role) error {
	if err := l.ep.Connect(addr); err != nil {
		return err
	}
	slot := l.peer
	if role == fastpath.Target {
		slot = 0 // a target uses no keys of the peer's
	}
	fl, err := s.NewLink(l.rail.index, slot, l.ep.Core(), l.id, role)
	l.l, l.up = fl, fl.Exists()
	if err != nil {
		return err // drop closes the endpoint, then the link
	}
	e.linksMu.Lock()
	e.links[l.id] = l
	e.linksMu.Unlock()
	return nil
}

// quiesce ends all access through the link's endpoint: on return the library touches no local buffer for it, and
// nobody reaches our memory through it.
func (e *Engine) quiesce(l *link) {
	if l.up {
		l.l.Stop()
	}
	if l.ep != nil {
		if err := l.ep.Close(); err != nil {
			e.log.Warn("closing an endpoint", "rail", l.rail.name(), "err", err)
		}
		l.ep = nil
	}
	if l.up {
		l.l.Reap()
	}
}

// drop ends the link for good; what is queued on it ends with the status.
func (e *Engine) drop(l *link, st int32) {
	e.quiesce(l)
	if !l.up {
		return
	}
	e.linksMu.Lock()
	delete(e.links, l.id)
	e.linksMu.Unlock()
	l.l.Fail(st)
	l.l.Free()
	l.up = false
}

// renew opens another endpoint for a quiesced link.
func (e *Engine) renew(l *link) error {
	ep, err := l.rail.OpenEndpoint()
	if err != nil {
		return err
	}
	l.ep = ep
	l.epoch++
	return nil
}
