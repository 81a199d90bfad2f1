package target

import (
	"net/netip"

	"gorail/backend/link"
	"gorail/backend/peer"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// RailsMoved handles rails of ours that have another address since their interface has lost the old one: initiators are asked to fence all links
// over them, and get the new address with the answer.
func (s *Sessions) RailsMoved(over []*rails.Rail, was netip.Addr, why string) {
	for _, t := range s.All() {
		t.in.Suspect(was, why)
		for _, r := range over {
			go t.want(r, func(l *link.Link) bool { return !l.Shared() })
		}
	}
}

// Moved implements peer.TargetHandler.
func (s *Sessions) Moved(in *peer.In, control []string) {
	if s.Of(in) != nil {
		s.Config.Moved(in.Engine(), control)
	}
}

// Whereabouts returns the control addresses that an engine has told us in a session that we serve; nil: none.
func (s *Sessions) Whereabouts(engine wire.EngineID) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, t := range s.byEngine[engine] {
		if at := t.in.Control(); at != nil {
			return at
		}
	}
	return nil
}
