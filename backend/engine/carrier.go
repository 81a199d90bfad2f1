package engine

import (
	"context"
	"os"
	"time"

	"gorail/backend/core"
	"gorail/backend/rails"
)

// carrierEvery is the time between two looks at rails that complete nothing, while there are transfers.
const carrierEvery = 20 * time.Millisecond

// watchCarriers reads the carrier of devices whose rails have operations in flight and complete none. The kernel reports a lost
// carrier at once, but only if it has reported none in the last second (linkwatch). Its state has no delay.
func (e *Engine) watchCarriers(ctx context.Context, over []*rails.Rail) {
	stalls := make([]stall, len(over))
	timer := time.NewTimer(carrierEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if e.transfers.ActiveLen() == 0 {
			timer.Reset(250 * time.Millisecond)
			continue
		}
		timer.Reset(carrierEvery)
		for i, r := range over {
			name := r.Device().Name
			if stalls[i].look(e.core.RailTally(r.Index), func() bool { return lostCarrier(name) }) {
				e.log.Debug("device has lost its carrier", "device", name)
				e.railChanged(name, false)
			}
		}
	}
}

// stall is what the last look at a rail found.
type stall struct {
	completions uint64
	lost        bool // reported, and nothing has completed since
}

// look returns true if the device of a rail that completes nothing has just lost its carrier.
func (s *stall) look(t core.Tally, lost func() bool) bool {
	stuck := t.InFlight > 0 && t.Completions == s.completions
	was := s.lost
	s.completions, s.lost = t.Completions, stuck && lost()
	return s.lost && !was
}

// lostCarrier returns true if an interface is up without a carrier. For one that is down the kernel gives EINVAL: netlink reports that at once.
func lostCarrier(name string) bool {
	b, err := os.ReadFile("/sys/class/net/" + name + "/carrier")
	return err == nil && len(b) > 0 && b[0] == '0'
}
