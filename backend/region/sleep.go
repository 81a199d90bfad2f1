package region

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"gorail/backend/errcode"
)

// sleeper is what looks have found at the addresses of a region that is asleep. Under renewals, except the last two.
type sleeper struct {
	found   uint64      // what is there; 0: not all of it is mapped
	since   time.Time   // when it was there first
	refused uint64      // what could not be registered again; 0: nothing
	quiet   atomic.Bool // that is still there: copies ask for no look
	settled atomic.Bool // what was found has been there for Settled: a copy wakes the region
}

// asleep reports that no rail has the memory, because other memory is at its addresses, or none.
func (r *Region) asleep() bool { return r.sleep != nil }

// Settled is how long memory must stay as it is before it is registered again.
const Settled = 50 * time.Millisecond

// see notes a look. soon: the memory may have settled at the next look.
func (s *sleeper) see(is uint64, at time.Time) (soon bool) {
	if is != s.found {
		s.found, s.since = is, at
		s.quiet.Store(is != 0 && is == s.refused)
	}
	fits := is != 0 && is != s.refused
	s.settled.Store(fits && at.Sub(s.since) >= Settled)
	return fits && !s.settled.Load()
}

// refuse notes that what was found could not be registered. It is not tried again: a try asks the driver questions that it does not bear
// while the application unmaps the memory. Other memory at these addresses is tried.
func (s *sleeper) refuse() {
	s.refused = s.found
	s.quiet.Store(s.found != 0)
	s.settled.Store(false)
}

// wake registers memory again that has settled, of regions that the caller holds for a copy. The application does not unmap memory while a
// transfer of it runs, and that makes the driver's answers safe: driver 580 lets an application crash that unmaps memory while anybody asks
// for a mapping's access, size or handle, or exports it (H200: 4 to 6 of 6 runs of 7 s each).
func (m *Registry) wake(settled []*Region) {
	if len(settled) == 0 || !m.renewals.TryLock() { // the next copy tries again
		return
	}
	defer m.renewals.Unlock()
	m.renew(slices.DeleteFunc(settled, func(r *Region) bool {
		return !r.asleep() || !r.sleep.settled.Load() || !m.still(look{r: r, adopted: r.adopted}) // deregistered meanwhile
	}), (*Registry).awaken)
}

// awaken registers a region that is asleep. nil: the memory has changed since the look.
func (m *Registry) awaken(r *Region) *Region {
	if m.gpu.Identity(r.Addr, r.Len) != r.sleep.found {
		r.sleep.settled.Store(false)
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
