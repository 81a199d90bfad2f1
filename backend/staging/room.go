package staging

import (
	"fmt"
	"time"

	"gorail/backend/limits"
	"gorail/backend/quota"
)

// ringsPerGPU is the default bound of peers' rings: one ring each for 64 peers over wires, or two each for the peers of
// one host, for each GPU with registered memory. With the default stage_size that is 4 GiB a GPU.
const ringsPerGPU = 64

// fullError means that peers' rings take all the memory that they may take.
type fullError struct {
	most uint64
	by   quota.Bound
}

func (e *fullError) Error() string {
	whose := map[quota.Bound]string{quota.BySource: "of peers at this address ", quota.ByIdentity: "of peers of this identity "}[e.by]
	return fmt.Sprintf("the staging rings %stake all that they may: all peers have %d MiB, one address or identity three quarters of it (option staging_memory)", whose, e.most>>20)
}

// slotSize is the size of a slot of a ring in bytes.
func (s *Side) slotSize() uint64 { return max(s.Size/slotsOfRing, 64<<10) &^ (64<<10 - 1) }

// ringUsage is what a ring counts in Side.room.
func (s *Side) ringUsage() quota.Usage { return quota.Usage{Bytes: int(s.slotSize() * slotsOfRing)} }

// mostMemory is the bound of all peers' rings in bytes.
func (s *Side) mostMemory() uint64 {
	if s.Memory > 0 {
		return s.Memory
	}
	return ringsPerGPU * s.slotSize() * slotsOfRing * uint64(max(1, s.Regions.GPUs()))
}

// takeRoom counts one ring for a peer, until leaveRoom. The error is a *fullError.
func (s *Side) takeRoom(in Initiator) error {
	most := s.mostMemory()
	refusal := s.room.Take(in.Owner(), s.ringUsage(), quota.Quarters(quota.Usage{Bytes: int(most)}), time.Now()) //limit:identity_staging_rings
	switch refusal.By {
	case quota.ByNone:
		return nil
	case quota.ByIdentity:
		s.Limits.Hit(limits.IdentityStagingRings)
	default:
		s.Limits.Hit(limits.StagingRings)
	}
	return &fullError{most, refusal.By}
}

// leaveRoom is called when a peer's ring is freed.
func (s *Side) leaveRoom(in Initiator) { s.room.Give(in.Owner(), s.ringUsage()) }

// warnOf logs a warning that a peer has caused, within the limit of such lines.
func (s *Side) warnOf(in Initiator, text string, args ...any) {
	if !s.lines.Warn(s.Log, time.Now(), text, append(args, "peer", in.Agent())...) {
		s.Limits.Hit(limits.LogLines)
	}
}
