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
type fullError struct{ most uint64 }

func (e *fullError) Error() string {
	return fmt.Sprintf("the staging rings of peers take all that they may: %d MiB, those of one address three quarters of it (option staging_memory)", e.most>>20)
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
	if _, fits := s.room.Take(in.Source(), s.ringUsage(), quota.Usage{Bytes: int(most)}); !fits {
		s.Limits.Hit(limits.StagingRings)
		return &fullError{most}
	}
	return nil
}

// leaveRoom is called when a peer's ring is freed.
func (s *Side) leaveRoom(in Initiator) { s.room.Give(in.Source(), s.ringUsage()) }

// warnOf logs a warning that a peer has caused, within the limit of such lines.
func (s *Side) warnOf(in Initiator, text string, args ...any) {
	if !s.lines.Warn(s.Log, time.Now(), text, append(args, "peer", in.Agent())...) {
		s.Limits.Hit(limits.LogLines)
	}
}
