package peer

import (
	"fmt"
	"time"

	"gorail/backend/wire"
)

// makeRoom admits one more session that we serve. At the bound the session whose peer is silent for longest gives way, if that
// peer has missed its heartbeats; else the newcomer is told to come back.
func (n *Node) makeRoom() *RejectError {
	served := n.serving()
	most := n.cfg.MaxSessions
	if len(served) < most {
		return nil
	}
	now := time.Now()
	var silent *session
	var longest time.Duration
	for _, s := range served {
		if s.State() != Ready {
			continue
		}
		if quiet := s.live.silence(now); quiet > longest {
			silent, longest = s, quiet
		}
	}
	if silent == nil || longest <= n.cfg.heartbeat() {
		return &RejectError{Code: wire.CodeBusy, Text: fmt.Sprintf("%d sessions are served already (option max_sessions)", most)}
	}
	silent.end(Lost, fmt.Errorf("%w: %s: silent for %v, and %d sessions are served (option max_sessions)",
		ErrSilent, silent.peer, longest.Round(time.Millisecond), most), nil)
	return nil
}

// serving are the sessions with initiators.
func (n *Node) serving() (list []*session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for s := range n.sessions {
		if s.inbound {
			list = append(list, s)
		}
	}
	return list
}
