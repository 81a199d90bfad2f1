package region

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/backend/rails"
)

// An application may map other GPU memory at a registered address, or unmap it and keep the registration: sleep modes, allocators over
// cuMemCreate, cudaFree and cudaMalloc. The key means the address. So the region is registered again, and peers unmap what they have
// mapped and ask for new keys. Correctness does not depend on this: the owner confirms each copy through a mapping (shm/cma/ask.c).

// renewals is a lock that is taken before all other locks: nothing is registered again, and no GPU memory deregistered, meanwhile.
type renewals struct {
	sync.Mutex
	wanted chan struct{} // see Renewals
}

// Renewals receives when memory may not be what was registered. The receiver calls Recheck.
func (m *Registry) Renewals() <-chan struct{} { return m.renewals.wanted }

// Outdated asks for a Recheck soon. It never blocks.
func (m *Registry) Outdated() {
	select {
	case m.renewals.wanted <- struct{}{}:
	default:
	}
}

// look is what a look at a region has found.
type look struct {
	r       *Region
	adopted uint32      // of the region, when it was looked at
	is      provider.MR // its registration on one rail; nil: it is asleep
	found   uint64      // at the addresses of a region that is asleep
	at      time.Time
}

// Recheck looks at all registered GPU memory. What is not what was registered goes to sleep: peers give it up, and transfers go over bounce
// buffers, by addresses. What was the same for Settled is registered again by the next copy (wake). A look takes 0.1 us for each VMM handle,
// and no deregistration waits for that: with 8,000 handles on four rails of our libcuda (engine BenchmarkRecheck), a look takes 158 ms and a
// deregistration beside it 12 us. With a question for each rail, under the lock: 611 ms and 622 ms. soon: look again after Settled.
func (m *Registry) Recheck() (soon bool) {
	if m.HasLent.Load() {
		m.unlend()
	}
	if !m.HasVRAM.Load() {
		return false
	}
	news := m.look()
	if len(news) == 0 {
		return false
	}
	m.renewals.Lock()
	defer m.renewals.Unlock()
	var sleep []*Region
	for _, l := range news {
		switch {
		case !m.still(l):
		case l.is != nil:
			sleep, soon = append(sleep, l.r), true
		default:
			soon = l.r.sleep.see(l.found, l.at) || soon
		}
	}
	m.sleep(sleep)
	return soon
}

// look asks the driver about all registered GPU memory, without a lock: its answers are safe while the application, or a deregistration,
// takes the memory away. It returns memory that has changed, and what is behind regions that are asleep.
func (m *Registry) look() []look {
	var list []look
	m.mu.Lock()
	for r := range m.each() {
		if r.Mem != VRAM || r.Slices != nil || !r.filled.Load() || r.Refused != nil {
			continue
		}
		if l := (look{r: r, adopted: r.adopted, is: r.renewable()}); r.asleep() || l.is != nil {
			list = append(list, l)
		}
	}
	m.mu.Unlock()
	list = slices.DeleteFunc(list, func(l look) bool { return l.is != nil && l.is.Same() == nil })
	for i := range list {
		if l := &list[i]; l.is == nil {
			l.found, l.at = m.gpu.Identity(l.r.Addr, l.r.Len), time.Now()
		}
	}
	return list
}

// still reports that a region is registered as it was when it was looked at. Under renewals.
func (m *Registry) still(l look) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return l.r.refs > 0 && l.r.adopted == l.adopted
}

// refresh looks at a range that is registered once more: the application may have freed the memory, and allocated it again.
func (m *Registry) refresh(r *Region) {
	m.renewals.Lock()
	defer m.renewals.Unlock()
	all := append([]*Region{r}, r.Slices...)
	m.again(slices.DeleteFunc(all, func(g *Region) bool { return g.Slices != nil || !g.asleep() && !g.outdated() }))
}

// Renew registers a region again, in any case.
func (m *Registry) Renew(r *Region) {
	m.renewals.Lock()
	defer m.renewals.Unlock()
	m.again([]*Region{r})
}

func (r *Region) outdated() bool {
	is := r.renewable()
	return is != nil && is.Same() != nil
}

// renewable is the registration on one rail. All rails have described the same memory, while the region was being registered.
func (r *Region) renewable() provider.MR {
	for _, ref := range r.mrs {
		if ref == nil {
			continue
		}
		if h, has := ref.Handle(); has {
			return h
		}
	}
	return nil
}

// former is what a region had before.
type former struct {
	r   *Region
	mrs []*rails.Ref[provider.MR]
}

// sleep takes the registrations of regions away. Regions that no device pins come first, because nobody waits for their peers. Under renewals.
func (m *Registry) sleep(list []*Region) {
	pinned := slices.DeleteFunc(slices.Clone(list), func(r *Region) bool { return !m.pins(r) })
	m.renew(slices.DeleteFunc(list, m.pins), (*Registry).unregistered)
	m.sleepPinned(pinned)
	m.logRenewed(pinned)
}

// again registers regions again. Under renewals.
func (m *Registry) again(list []*Region) {
	pinned := slices.DeleteFunc(slices.Clone(list), func(r *Region) bool { return !m.pins(r) })
	m.sleepPinned(pinned)
	m.renew(list, (*Registry).registerAgain)
	m.logRenewed(slices.DeleteFunc(pinned, func(r *Region) bool { return !r.asleep() })) // renew has logged the others
}

// sleepPinned is sleep for regions on which a device may work. All of them, their transfers and peers, have one deadline: a deregistration
// may wait for it, and so do the peers of other memory.
func (m *Registry) sleepPinned(list []*Region) {
	if len(list) == 0 {
		return
	}
	deadline := time.Now().Add(m.opt.CancelTimeout)
	for _, r := range list {
		r.Core.SetLive(false)
	}
	gone, holders := make([]former, 0, len(list)), map[*Holder][]uint64{}
	for _, r := range list {
		gone = append(gone, m.exchange(r, m.unregistered(r), holders))
	}
	answers := revoke(holders, true)
	m.endTransfers(list, deadline, Anew)
	for _, r := range list { // no post reads the keys any more
		r.show()
	}
	for t, answer := range answers {
		t.await(answer, deadline, Anew)
	}
	m.end(gone)
}

// renew gives regions that no device pins new registrations, and takes the peers' keys back. Copies of other processes are confirmed by us,
// so we do not wait for a stopped peer: it unmaps the memory when it continues. Under renewals.
func (m *Registry) renew(list []*Region, again func(*Registry, *Region) *Region) {
	var done, refused []*Region
	var gone []former
	var why error
	holders := map[*Holder][]uint64{}
	for _, r := range list {
		fresh := again(m, r)
		switch {
		case fresh == nil:
		case r.asleep() && fresh.asleep(): // peers have no keys of it
			r.sleep.refuse()
			refused, why = append(refused, r), fresh.Refused
		default:
			done, gone = append(done, r), append(gone, m.exchange(r, fresh, holders))
			r.show()
		}
	}
	m.logRefused(refused, why)
	m.logRenewed(done)
	renewed(holders)
	m.end(gone)
}

// exchange gives a region other registrations. It returns the old ones, and notes who has keys of them.
func (m *Registry) exchange(r, fresh *Region, holders map[*Holder][]uint64) former {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := former{r, r.mrs}
	r.adopt(fresh)
	for _, t := range m.holders.take(r.ID) {
		holders[t] = append(holders[t], r.ID)
	}
	return old
}

// renewed tells peers to give up memory that stays registered, and does not wait for their answers.
func renewed(holders map[*Holder][]uint64) {
	for t, answer := range revoke(holders, true) {
		go func() {
			select {
			case <-answer:
			case <-time.After(lateAfter):
				t.Late()
			}
		}()
	}
}

// revoke tells peers to give memory up; renewed: it stays registered. The channels close with their answers.
func revoke(holders map[*Holder][]uint64, renewed bool) map[*Holder]<-chan struct{} {
	answers := map[*Holder]<-chan struct{}{}
	for t, ids := range holders {
		answers[t] = t.revoke(ids, renewed)
	}
	return answers
}

// end ends old registrations.
func (m *Registry) end(gone []former) {
	for _, g := range gone {
		_ = m.deregisterRails(&Region{Claim: g.r.Claim, registration: registration{mrs: g.mrs}}) // ignored: the memory is gone, and errors are in the log
	}
}

// registerAgain makes new registrations of the range. If there are none, Refused says why.
func (m *Registry) registerAgain(r *Region) *Region {
	if why := m.checkVRAM(r); why != nil {
		fresh := m.unregistered(r)
		fresh.Refused = why
		return fresh
	}
	fresh := &Region{Claim: r.Claim, Core: r.Core, Access: r.Access}
	m.registerVRAM(fresh)
	if fresh.Rails.Load() == 0 && r.mrs != nil && fresh.Refused != nil {
		fresh.sleep = &sleeper{}
	}
	return fresh
}

// unregistered is the range without registrations.
func (m *Registry) unregistered(r *Region) *Region {
	return &Region{Claim: r.Claim, registration: registration{mrs: make([]*rails.Ref[provider.MR], len(m.set.List)), sleep: &sleeper{}}}
}

// adopt gives a region new registrations. Posts may read the keys meanwhile: what the old ones name lives on until copies that were
// posted with them have ended. Under mu.
func (r *Region) adopt(fresh *Region) {
	r.mrs, r.sleep = fresh.mrs, fresh.sleep
	r.adopted++
	r.near.Store(fresh.near.Load())
	r.Rails.Store(fresh.Rails.Load())
}

// show lets posts see what a region has adopted. Under renewals.
func (r *Region) show() {
	for i, ref := range r.mrs {
		if ref == nil { // registerVRAM has set the other keys
			r.Core.ClearKey(i)
		}
	}
	r.Core.SetLive(true)
}

// logRenewed writes a line for regions that were registered again, and one for those without memory: a model has hundreds of regions.
func (m *Registry) logRenewed(list []*Region) {
	for _, asleep := range []bool{false, true} {
		n, bytes, first := 0, uint64(0), (*Region)(nil)
		for _, r := range list {
			if r.asleep() != asleep {
				continue
			}
			if n, bytes = n+1, bytes+r.Len; first == nil {
				first = r
			}
		}
		text := "other GPU memory is mapped at registered addresses: it is registered again, and peers map it anew"
		if asleep {
			text = "GPU memory was unmapped or replaced, and is still registered: peers give it up, and transfers to unmapped memory fail"
		}
		if n > 0 {
			m.log.Info(text, "regions", n, "bytes", bytes, "first", fmt.Sprintf("%#x", first.Addr), "gpu", first.Dev)
		}
	}
}

// pins reports that a rail which pins memory has the region.
func (m *Registry) pins(r *Region) bool {
	for i, ref := range r.mrs {
		if ref != nil && m.set.List[i].Can().PinsMemory {
			return true
		}
	}
	return false
}

// lateAfter is how long peers have to unmap memory before the log names them.
const lateAfter = 2 * time.Second

// Why memory is taken from its users.
const (
	Deregistered = "local memory was deregistered"
	Anew         = "the GPU memory at a registered address was unmapped or replaced"
)

// refuse ends a registration of GPU memory that no rail took, and returns the error for the application.
func (m *Registry) refuse(r *Region, why error) error {
	code := errcode.GPURefused
	switch {
	case errcode.Of(why) == errcode.NotGPUMemory:
		code = errcode.NotGPUMemory
	case errors.Is(why, provider.ErrNotThere):
		code = errcode.NotGPUMemory
	case gpu.Is(why, gpu.NoLibrary) || gpu.Is(why, gpu.NoDevice):
		code = errcode.NoGPUDriver
	}
	err := code.Errorf("register %#x+%d of GPU %d: %w", r.Addr, r.Len, r.Dev, why)
	return errors.Join(err, m.Deregister(r.ID))
}

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
