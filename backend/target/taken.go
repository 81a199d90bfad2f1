package target

import (
	"cmp"
	"math"
	"slices"
	"time"

	"gorail/backend/limits"
	"gorail/backend/notify"
	"gorail/backend/quota"
	"gorail/backend/wire"
)

// mostProgress bounds the engines of which progress is kept. Option notif_memory bounds the bytes behind gaps, of all
// engines together.
const mostProgress = 4096

// saveProgress saves the progress of a session that ends. Messages behind a gap are given up after two peer_timeouts if the
// engine has not come back. The engine reconnects for peer_timeout, and may notice the end later than we do.
func (s *Sessions) saveProgress(id wire.EngineID, now *notifProgress) {
	if s.Life.Closed() || now.asm.Next() == 0 && now.asm.Pending() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.progress[id]; before != nil && before.last > now.last {
		s.dropHeld(now, id) // an older session may end later
		return
	}
	if len(s.progress) >= mostProgress && s.progress[id] == nil {
		s.Limits.Hit(limits.Progress)
		s.dropProgress(s.leastMissed())
	}
	s.progress[id] = now //limit:notif_progress
	if now.asm.Pending() == 0 {
		return
	}
	held := uint64(0)
	for _, t := range s.progress {
		held += t.asm.Counts().Bytes
	}
	if held > s.Options.NotifMemory { //limit:notif_progress_bytes
		s.Limits.Hit(limits.ProgressBytes)
		s.dropHeld(now, id)
		return
	}
	s.Life.After(2*s.Options.PeerTimeout, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.progress[id] == now {
			s.dropHeld(now, id)
		}
	})
}

// leastMissed is an engine of the identity that has the most entries among any 64, and of its source with the most: engine
// ids are free to make, and only an engine that reconnects within its peer_timeout needs its entry. Without certificates
// all have one identity. Under mu.
func (s *Sessions) leastMissed() (id wire.EngineID) {
	type entry struct {
		id    wire.EngineID
		owner quota.Owner
	}
	var some []entry
	identities, owners := map[quota.ID]int{}, map[quota.Owner]int{}
	for id, t := range s.progress {
		some = append(some, entry{id, t.owner})
		identities[t.owner.Identity]++
		owners[t.owner]++
		if len(some) == 64 {
			break
		}
	}
	return slices.MaxFunc(some, func(a, b entry) int {
		return cmp.Or(cmp.Compare(identities[a.owner.Identity], identities[b.owner.Identity]), cmp.Compare(owners[a.owner], owners[b.owner]))
	}).id
}

// dropProgress forgets an engine's progress. Under mu.
func (s *Sessions) dropProgress(id wire.EngineID) {
	if t := s.progress[id]; t != nil {
		s.dropHeld(t, id)
		delete(s.progress, id)
	}
}

// dropHeld gives up the messages behind a gap. Under mu.
func (s *Sessions) dropHeld(t *notifProgress, id wire.EngineID) {
	if n := t.asm.Pending(); n > 0 {
		if !s.warnLimit.Warn(s.Log, time.Now(), "notifications dropped: earlier ones never arrived, and the peer began no session that sends them again", "engine", id, "count", n) {
			s.Limits.Hit(limits.LogLines)
		}
		next := t.asm.Next()
		t.asm, t.skip = notify.New(notify.Limits{}), map[uint64]bool{}
		t.asm.Advance(next)
	}
}

// progressAfter is an engine's progress when its session `after` was lost. nil: none is known, and the numbers begin anew.
// The progress stays saved until the session that asks is open. One session asks at a time, with older sessions frozen.
func (s *Sessions) progressAfter(id wire.EngineID, after uint64) *notifProgress {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.progress[id]
	switch {
	case t == nil:
	case after < t.first || after > t.last: // 0, or a session before these numbers
		s.dropProgress(id)
	default:
		if have := t.asm.Have(); len(have) > wire.MaxHave || len(have) > 0 && have[len(have)-1]-t.asm.Next() > math.MaxUint16 {
			s.dropHeld(t, id) // no initiator of ours has so many in flight
		}
		return t
	}
	return nil
}

// distances are the distances of the waiting notifications from the next one.
func distances(asm *notify.Assembler) (d []uint16) {
	for _, seq := range asm.Have() {
		d = append(d, uint16(seq-asm.Next()))
	}
	return d
}
