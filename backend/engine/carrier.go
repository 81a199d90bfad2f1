package engine

import (
	"cmp"
	"context"
	"os"
	"time"

	"gorail/backend/core"
	"gorail/backend/provider"
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
			select {
			case <-ctx.Done():
				return
			case <-e.stir.carrier: // a token of transfers that have ended since costs one look
			}
		}
		timer.Reset(carrierEvery)
		for i, r := range over {
			d := r.Device()
			if stalls[i].look(e.core.RailTally(r.Index), func() bool { return lostCarrier(interfaceOf(d)) }) {
				e.log.Debug("device has lost its carrier", "device", d.Name, "interface", interfaceOf(d))
				e.railChanged(d.Name, false)
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

// interfaceOf is the network interface whose carrier a device needs: of a RoCE device the one below it. Drivers in software raise
// IBV_EVENT_PORT_ERR when the kernel reports the interface, and so as late.
func interfaceOf(d provider.Device) string { return cmp.Or(d.Net, d.Name) }

// lostCarrier returns true if an interface is up without a carrier. For one that is down the kernel gives EINVAL: netlink reports that at once.
func lostCarrier(name string) bool {
	b, err := os.ReadFile("/sys/class/net/" + name + "/carrier")
	return err == nil && len(b) > 0 && b[0] == '0'
}
