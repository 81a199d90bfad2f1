package peer

import (
	"fmt"
	"time"

	"gorail/backend/wire"
)

// makeRoom admits one more session that we serve. At the bound the session whose peer is silent for longest gives way, if that
// peer has missed its heartbeats; else the newcomer is told to come back.
func (n *Node) makeRoom() *RejectError {
	n.mu.Lock()
	served, now := 0, time.Now()
	var silent *session
	var longest time.Duration
	for s := range n.sessions {
		if !s.inbound {
			continue
		}
		served++
		if s.State() != Ready {
			continue
		}
		if quiet := now.Sub(s.live.lastHeard()); quiet > longest {
			silent, longest = s, quiet
		}
	}
	most := n.cfg.MaxSessions
	n.mu.Unlock()
	switch {
	case served < most:
		return nil
	case silent != nil && longest > n.cfg.heartbeat():
		silent.end(Lost, fmt.Errorf("%w: %s: silent for %v, and %d sessions are served (option max_sessions)",
			ErrSilent, silent.peer, longest.Round(time.Millisecond), most), nil)
		return nil
	}
	return &RejectError{wire.CodeBusy, fmt.Sprintf("%d sessions are served already (option max_sessions)", most)}
}
