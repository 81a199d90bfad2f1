package region

import (
	"fmt"
	"sync/atomic"
	"time"

	"gorail/backend/errcode"
)

// sleeper is what looks have found at the addresses of a region that is asleep. Under renewals, except quiet.
type sleeper struct {
	found   uint64      // what is there; 0: not all of it is mapped
	since   time.Time   // when it was there first
	refused uint64      // what could not be registered again; 0: nothing
	quiet   atomic.Bool // that is still there: copies ask for no look
}

// asleep reports that no rail has the memory, because other memory is at its addresses, or none.
func (r *Region) asleep() bool { return r.sleep != nil }

// Settled is how long memory must stay as it is before it is registered again.
const Settled = 50 * time.Millisecond

// see notes a look. wake: the memory is to be registered again. soon: it may be at the next look.
func (s *sleeper) see(is uint64, at time.Time) (wake, soon bool) {
	if is != s.found {
		s.found, s.since = is, at
		s.quiet.Store(is != 0 && is == s.refused)
	}
	switch {
	case is == 0 || is == s.refused:
	case at.Sub(s.since) < Settled:
		return false, true
	default:
		return true, false
	}
	return false, false
}

// refuse notes that what was found could not be registered. It is not tried again: a try asks the driver questions that it does not bear
// while the application unmaps the memory. Other memory at these addresses is tried.
func (s *sleeper) refuse() {
	s.refused = s.found
	s.quiet.Store(s.found != 0)
}

// wake registers a region that is asleep. nil: the memory has changed since the look.
func (m *Registry) wake(r *Region) *Region {
	if m.copier.Identity(r.Addr, r.Len) != r.sleep.found {
		return nil
	}
	return m.registerAgain(r)
}

// logRefused writes one line for regions that stay asleep: an application may have hundreds.
func (m *Registry) logRefused(list []*Region, why error) {
	if len(list) == 0 {
		return
	}
	m.log.Warn("the GPU memory that is mapped at registered addresses now cannot be registered: transfers of it are staged, or fail; deregister what is not used any more",
		"regions", len(list), "first", fmt.Sprintf("%#x", list[0].Addr), "gpu", list[0].Dev, "err", why, errcode.Key, errcode.MemoryNotOnRail)
}
