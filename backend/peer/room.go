package peer

import (
	"fmt"
	"net/netip"
	"time"

	"gorail/backend/wire"
)

// searchEvery is how often a session that may give way is looked for: newcomers at the bound must cost little.
const searchEvery = 10 * time.Millisecond

// decoded is about how many bytes of memory one byte of a frame takes while the frame is read and decoded.
const decoded = 3

// makeRoom counts one more session that we serve. At a bound the session whose peer is silent for longest gives way, if that
// peer has missed its heartbeats; the newcomer is told to come back.
func (n *Node) makeRoom(s *session) *RejectError {
	n.mu.Lock()
	all, same := n.inbound, n.sources[s.source]
	if s.counted = all < n.cfg.MaxSessions && same < n.cfg.MaxPerSource; s.counted {
		n.inbound++
		n.sources[s.source]++
	}
	fits := s.counted
	n.mu.Unlock()
	switch {
	case fits:
		return nil
	case all >= n.cfg.MaxSessions:
		n.MakeRoom(netip.Addr{})
		return busyBy(all, "sessions are served", "max_sessions")
	default:
		n.MakeRoom(s.source)
		return busyBy(same, "sessions from "+s.source.String()+" are served", "max_sessions_per_source")
	}
}

func busyBy(count int, what, option string) *RejectError {
	return &RejectError{Code: wire.CodeBusy, Text: fmt.Sprintf("%d %s already (option %s)", count, what, option)}
}

// release is called with mu held.
func (n *Node) release(s *session) {
	if !s.counted {
		return
	}
	s.counted = false
	n.inbound--
	if n.sources[s.source]--; n.sources[s.source] == 0 {
		delete(n.sources, s.source)
	}
}

// MakeRoom ends the session from that source whose peer is silent for longest, if it has missed its heartbeats;
// of any source for the zero address. It does nothing when it was called just now.
func (n *Node) MakeRoom(source netip.Addr) {
	now := time.Now()
	n.mu.Lock()
	soon := now.Sub(n.searched) < searchEvery
	if !soon {
		n.searched = now
	}
	n.mu.Unlock()
	if soon {
		return
	}
	var silent *session
	var longest time.Duration
	for _, s := range n.serving() {
		if source.IsValid() && s.source != source || s.State() != Ready {
			continue
		}
		if quiet := s.live.silence(now); quiet > longest {
			silent, longest = s, quiet
		}
	}
	if silent == nil || longest <= n.cfg.heartbeat() {
		return
	}
	silent.end(Lost, fmt.Errorf("%w: %s: silent for %v, and others need its place (options max_sessions, max_sessions_per_source, max_endpoints)",
		ErrSilent, silent.peer, longest.Round(time.Millisecond)), nil)
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

// holdPartial says how many bytes the frame takes that is being read.
func (s *session) holdPartial(bytes int64) {
	if !s.inbound {
		return
	}
	s.node.frames.Add(bytes - s.partial.Swap(bytes))
	s.node.shed()
}

// shed ends the session that holds the most bytes of frames, while all that we serve hold more than Config.Memory.
func (n *Node) shed() {
	if n.frames.Load() <= int64(n.cfg.Memory) {
		return
	}
	n.mu.Lock()
	busy := n.shedding
	n.shedding = true
	n.mu.Unlock()
	if busy {
		return
	}
	n.spawn(func() {
		defer func() {
			n.mu.Lock()
			n.shedding = false
			n.mu.Unlock()
		}()
		var worst *session
		var most int64
		for _, s := range n.serving() {
			if held := int64(s.queue.kept()) + s.partial.Load(); held > most && !s.State().over() {
				worst, most = s, held
			}
		}
		if worst == nil || n.frames.Load() <= int64(n.cfg.Memory) {
			return
		}
		n.count.overflows.Add(1)
		worst.end(Lost, fmt.Errorf("%w: %s: its frames take %d MiB, and those of all peers more than %d MiB (option control_memory)",
			ErrOverflow, worst.peer, most>>20, n.cfg.Memory>>20), nil)
	})
}
