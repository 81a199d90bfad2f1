package target

import (
	"math"

	"gorail/backend/notify"
	"gorail/backend/wire"
)

// Bounds of what is kept of sessions that have ended: the engines, and the bytes that wait behind gaps, of all together.
const (
	mostTaken = 4096
	mostHeld  = 256 << 20
)

// noteTaken keeps how far a session got that ends. What waits behind a gap is given up when the engine has not come back: it connects again
// for peer_timeout, and may notice the end later than we do.
func (s *Sessions) noteTaken(id wire.EngineID, now *taken) {
	if s.Life.Closed() || now.asm.Next() == 0 && now.asm.Pending() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.taken[id]; before != nil && before.last > now.last {
		s.dropHeld(now, id) // an older session may end later
		return
	}
	if len(s.taken) >= mostTaken {
		for other := range s.taken {
			s.dropTaken(other) // any one: it matters only to an engine that connects again within its peer_timeout
			break
		}
	}
	s.taken[id] = now
	if now.asm.Pending() == 0 {
		return
	}
	held := uint64(0)
	for _, t := range s.taken {
		held += t.asm.Counts().Bytes
	}
	if held > mostHeld {
		s.dropHeld(now, id)
		return
	}
	s.Life.After(2*s.Options.PeerTimeout, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.taken[id] == now {
			s.dropHeld(now, id)
		}
	})
}

// dropTaken forgets how far an engine's notifications got. Under mu.
func (s *Sessions) dropTaken(id wire.EngineID) {
	if t := s.taken[id]; t != nil {
		s.dropHeld(t, id)
		delete(s.taken, id)
	}
}

// dropHeld gives up what waits behind a gap. Under mu.
func (s *Sessions) dropHeld(t *taken, id wire.EngineID) {
	if n := t.asm.Pending(); n > 0 {
		s.Log.Warn("notifications dropped: those before them never came, and the peer has begun no session that sends them", "engine", id, "count", n)
		next := t.asm.Next()
		t.asm, t.skip = notify.New(notify.Limits{}), map[uint64]bool{}
		t.asm.Advance(next)
	}
}

// takenBefore is how far an engine got with its notifications when its session `after` was lost; nil: nothing is known, and numbers begin anew. It
// stays noted until the session that asks is there. One asks at a time, with older sessions frozen.
func (s *Sessions) takenBefore(id wire.EngineID, after uint64) *taken {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.taken[id]
	switch {
	case t == nil:
	case after < t.first || after > t.last: // 0, or of numbers before these
		s.dropTaken(id)
	default:
		if have := t.asm.Have(); len(have) > wire.MaxHave || len(have) > 0 && have[len(have)-1]-t.asm.Next() > math.MaxUint16 {
			s.dropHeld(t, id) // no initiator of ours has so many out
		}
		return t
	}
	return nil
}

// distances are how far beyond the next notification those are that wait for it.
func distances(asm *notify.Assembler) (d []uint16) {
	for _, seq := range asm.Have() {
		d = append(d, uint16(seq-asm.Next()))
	}
	return d
}
