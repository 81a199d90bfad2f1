package initiator

import (
	"fmt"
	"strings"
	"time"

	"gorail/backend/core"
	"gorail/backend/link"
	"gorail/backend/stats"
)

var stateNames = map[core.LinkState]string{core.LinkUp: "up", core.LinkStopped: "stopped", core.LinkDead: "ended", core.LinkProbing: "not proved"}

// Report describes the peer and each link, as attributes of log lines. The peer's own counters are not asked for: the control
// channel has no request for them, and a stuck peer would not answer. Implements transfer.Session.
func (r *Session) Report() (peer []any, links [][]any) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	peer = []any{"engine", r.blob.Engine.String(), "control_addresses", strings.Join(r.blob.Control, ","), "session", r.state.String()}
	if out := r.conn.out; out != nil {
		peer = append(peer, "control_connection", out.Remote().String())
		if heard := out.LastHeard(); !heard.IsZero() {
			peer = append(peer, "heard_ago", time.Since(heard).Round(time.Millisecond))
		}
	}
	if r.hasSess {
		peer = append(peer, "queued_notification_bytes", r.sess.Queued())
	}
	peer = append(peer, "peer_counters", "run gorail stats at the peer")
	for _, l := range r.links {
		line := []any{"link", l.Num, "rail", l.Ends(), "peer_rail", r.PeerRail(l.Peer), "phase", l.PhaseName()}
		if !l.Up {
			links = append(links, line)
			continue
		}
		s := l.Core.Stats()
		line = append(line, "state", stateNames[s.State])
		if idle := link.Idle(l.Core.Tally().Last); idle != stats.Never {
			line = append(line, "last_progress_ago", time.Duration(idle).Round(time.Millisecond))
		}
		links = append(links, append(line, "in_flight", fmt.Sprintf("%d requests, %d bytes", s.InflightOps, s.InflightBytes), "window", s.Window,
			"credits", s.Credits, "queued_messages", s.QueuedMsgs, "queued_transfers", s.QueuedSubs, "completions", s.Completions, "errors", s.Errors))
	}
	return peer, links
}
