package target

import (
	"gorail/backend/peer"
	"gorail/backend/quota"
)

// Used is the peers' usage of endpoints and descriptors.
func (s *Sessions) Used() quota.Usage { return s.room.Used() }

// Latest is the session that the control channel began last. nil: there is none.
func (s *Sessions) Latest() (latest *Session) {
	for _, t := range s.All() {
		if latest == nil || t.in.Session() > latest.in.Session() {
			latest = t
		}
	}
	return latest
}

// Held is the number of messages that wait behind a gap.
func (t *Session) Held() int {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	return len(t.order.asm.Have())
}

// Frozen returns true if the session no longer takes notifications in.
func (t *Session) Frozen() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.frozen
}

// Close ends the session, and informs the initiator.
func (t *Session) Close(why string) {
	t.close()
	t.in.Close(why)
}

// HoldHellos keeps Hellos waiting for their turn until the caller calls release.
func (s *Sessions) HoldHellos() (release func()) { return hold(s.opening, openers) }

// HoldKeyRequests is HoldHellos for requests for keys and rings.
func (s *Sessions) HoldKeyRequests() (release func()) { return hold(s.asking, askers) }

func hold(turns *quota.Turns, places int) (release func()) {
	var ends []func()
	for range places {
		if end, ok := turns.Take(nil, nil); ok {
			ends = append(ends, end)
		}
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

// In is the session on the control channel.
func (t *Session) In() *peer.In { return t.in }
