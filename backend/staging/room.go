package staging

import (
	"fmt"
	"time"

	"gorail/backend/limits"
	"gorail/backend/peer"
	"gorail/backend/wire"
)

// ringsPerGPU is the default bound of peers' rings for each GPU with registered memory. A peer over wires needs one ring, a
// peer of the same host two. With the default stage_size that is 4 GiB a GPU.
const ringsPerGPU = 64

// fullError means that peers' rings take all the memory that they may take.
type fullError struct {
	most uint64
	by   limits.Bound
}

func (e *fullError) Error() string {
	whose := map[limits.Bound]string{limits.BySource: " at this address", limits.ByIdentity: " of this identity"}[e.by]
	return fmt.Sprintf("bounce buffers of peers%s are used up: %d MiB in all, three quarters of that for one address or identity (option staging_memory)", whose, e.most>>20)
}

// slotSize is the size of a slot of a ring in bytes: on that GPU, or Host. A ring on a GPU is twice as large, because a chunk of 4 MiB
// takes NVLink 11 us, and the way to the peer's copy and back 200 to 300: two H200s move 1 GiB at 154 GB/s with 4 MiB slots, 263 with 8, 320
// with 16. Not if two such rings are more than option staging_memory: a peer gets three quarters of that.
func (s *Side) slotSize(device int) uint64 {
	size := max(s.Size/slotsOfRing, 64<<10) &^ (64<<10 - 1)
	if device != Host && (s.Memory == 0 || s.Memory >= 4*s.Size) {
		size = min(2*size, wire.MaxRing/slotsOfRing)
	}
	return size
}

// ringUsage is what a ring on that GPU or the host counts in Side.room.
func (s *Side) ringUsage(device int) limits.Amount {
	return limits.Amount{Bytes: int(s.slotSize(device) * slotsOfRing)}
}

// mostMemory is the bound of all peers' rings in bytes.
func (s *Side) mostMemory() uint64 {
	if s.Memory > 0 {
		return s.Memory
	}
	return ringsPerGPU * s.slotSize(Host) * slotsOfRing * uint64(max(1, s.Regions.GPUs()))
}

// takeRoom counts one ring on that GPU or the host for a peer, until leaveRoom. The error is a *fullError.
func (s *Side) takeRoom(in *peer.In, device int) error {
	most := s.mostMemory()
	refusal := s.room.Take(in.Owner(), s.ringUsage(device), limits.Quarters(limits.Amount{Bytes: int(most)}), time.Now()) //limit:identity_staging_rings
	switch refusal.By {
	case limits.ByNone:
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.holders == nil {
			s.holders = map[*peer.In]int{}
		}
		s.holders[in]++
		return nil
	case limits.ByIdentity:
		s.Limits.Hit(limits.IdentityStagingRings)
	default:
		s.Limits.Hit(limits.StagingRings)
	}
	if refusal.Lent {
		s.recall(refusal)
	}
	return &fullError{most, refusal.By}
}

// recallEvery is the time for a peer's rings to become free.
const recallEvery = 10 * time.Second

// recall ends a session that holds rings beyond its identity's share. It ends another one after that one's rings are free.
func (s *Side) recall(f limits.Refusal) {
	s.mu.Lock()
	var from *peer.In
	if s.holders[s.recalled] == 0 || time.Since(s.since) > recallEvery {
		for in := range s.holders {
			if f.Asks(in.Owner()) && in != s.recalled {
				from = in
				break
			}
		}
	}
	if from != nil {
		s.recalled, s.since = from, time.Now()
	}
	s.mu.Unlock()
	if from != nil {
		s.warnOf(from, "session ended: its identity has more than its share of bounce buffers, and another identity needs some", "option", "staging_memory")
		from.Close("its identity has more than its share of bounce buffers, and another identity needs some (option staging_memory)")
	}
}

// leaveRoom is called when a peer's ring is freed.
func (s *Side) leaveRoom(in *peer.In, device int) {
	s.room.Give(in.Owner(), s.ringUsage(device))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders[in]--; s.holders[in] == 0 {
		delete(s.holders, in)
	}
	if len(s.holders) == 0 {
		s.recalled = nil // keeps no session
	}
}

// warnOf logs a warning that a peer has caused, within the limit of such lines.
func (s *Side) warnOf(in *peer.In, text string, args ...any) {
	if !s.lines.Warn(s.Log, time.Now(), text, append(args, "peer", in.Agent())...) {
		s.Limits.Hit(limits.LogLines)
	}
}

// PeerRings is the number of peers' rings that count against option staging_memory.
func (s *Side) PeerRings() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rings := range s.holders {
		n += rings
	}
	return n
}
