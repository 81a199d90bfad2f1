package region

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/topo"
)

// Rails that pin memory register in parallel, a few at a time, because each registration blocks a thread in the kernel. Below
// parallelMin bytes, starting goroutines costs as much as pinning the pages, so rails register in turn.
const (
	maxParallel = 8
	parallelMin = 64 << 10
)

// registerRails registers a region on every rail and records refusals. It runs before the region is ready.
func (m *Registry) registerRails(r *Region) {
	if r.Mem == VRAM {
		m.registerVRAM(r)
		return
	}
	r.mrs = make([]*rails.Ref[provider.MR], len(m.set.List))
	on := m.set.For(rails.Place{Node: m.set.NodeOf(r.Addr, r.Len)})
	if !m.parallel(r.Len) { // most registrations: without room for errors, and without goroutines
		for i := range m.set.List {
			if on&(1<<i) != 0 {
				m.registered(r, i, m.acquire(r, i))
			}
		}
	} else {
		errs := make([]error, len(m.set.List))
		m.eachRail(on, r.Len, func(i int) { errs[i] = m.acquire(r, i) })
		for i, err := range errs {
			m.registered(r, i, err)
		}
	}
	if r.Rails.Load() != 0 {
		r.Refused = nil
	}
}

// acquire registers a region of host memory on one rail.
func (m *Registry) acquire(r *Region, i int) (err error) {
	defer recovered(&err)
	if !m.set.List[i].Opened() {
		return nil // FillRail registers the region once the rail is open
	}
	if !m.takes(m.set.List[i], r) {
		return nil
	}
	r.mrs[i], _, err = m.set.List[i].Cache(r.Access).Acquire(r.Addr, r.Len)
	return err
}

// takes reports that a rail takes a region of host memory. One of NVLink between hosts takes the little that it can lend.
func (m *Registry) takes(rl *rails.Rail, r *Region) bool {
	if !rl.Can().VRAMOnly {
		return true
	}
	if h, ok := rl.Inner().(provider.Lender); !ok || !h.TakesHost(r.Addr, r.Len) {
		return false
	}
	if !m.HasLent.Swap(true) {
		m.Outdated() // looks begin
	}
	return true
}

// registered records whether a rail has the region. A rail that was not tried has neither a registration nor an error.
func (m *Registry) registered(r *Region, i int, err error) {
	rl := m.set.List[i]
	if err != nil {
		if r.Refused == nil {
			r.Refused = fmt.Errorf("rail %s: %w", rl.Name(), err)
		}
		m.notOn(rl, r, err)
		return
	}
	if r.mrs[i] == nil {
		return
	}
	r.Rails.Or(1 << i)
	if r.Mem == VRAM {
		m.GPURails.Or(1 << i)
	}
	key := core.Key{}
	if m, has := r.mrs[i].Handle(); has {
		key.Desc = m.Desc()
	}
	r.Core.SetKey(i, key)
}

// notOn logs that a rail has not a region; of regions that are too large for it the first.
func (m *Registry) notOn(rl *rails.Rail, r *Region, err error) {
	if !errors.Is(err, rails.ErrTooLarge) || rl.First("too large") {
		m.log.Warn("memory not registered on a rail", "rail", rl.Name(), "addr", fmt.Sprintf("%#x", r.Addr), "len", r.Len, "err", err, errcode.Key, errcode.MemoryNotOnRail)
	}
}

// recovered turns a panic into an error, because the call may run in its own goroutine.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %v", rails.ErrPanic, p)
	}
}

// deregisterRails ends the registrations of a region. An error means that a rail cannot guarantee that the memory is no longer
// accessed.
func (m *Registry) deregisterRails(r *Region) error {
	if r.Slices != nil {
		return nil
	}
	if !m.parallel(r.Len) {
		var all error
		for i := range m.set.List {
			all = errors.Join(all, m.released(i, m.release(r, i)))
		}
		return all
	}
	errs := make([]error, len(m.set.List))
	m.eachRail(^uint64(0), r.Len, func(i int) { errs[i] = m.release(r, i) })
	for i, err := range errs {
		errs[i] = m.released(i, err)
	}
	return errors.Join(errs...)
}

// release ends the registration of a region on one rail.
func (m *Registry) release(r *Region, i int) (err error) {
	defer recovered(&err)
	if r.mrs[i] != nil {
		cache := m.vram
		if r.Mem != VRAM {
			cache = m.set.List[i].Cache(r.Access)
		}
		_, err = cache.Release(r.mrs[i])
	}
	return err
}

// released logs an error of release, and names the rail in it.
func (m *Registry) released(i int, err error) error {
	if err == nil {
		return nil
	}
	m.log.Warn("closing a memory region failed", "rail", m.set.List[i].Name(), "err", err)
	return fmt.Errorf("rail %s: %w", m.set.List[i].Name(), err)
}

// parallel reports that eachRail would call rails in parallel.
func (m *Registry) parallel(bytes uint64) bool {
	if bytes < parallelMin {
		return false
	}
	pinning := 0
	for _, rl := range m.set.List {
		if rl.Can().PinsMemory {
			pinning++
		}
	}
	return pinning > 1
}

// eachRail calls f for every rail of a bit mask and waits for all calls. Rails that pin memory are called in parallel from parallelMin bytes
// on, others in turn.
func (m *Registry) eachRail(on, bytes uint64, f func(rail int)) {
	var slow []int
	for i, rl := range m.set.List {
		if on&(1<<i) == 0 {
			continue
		}
		if rl.Can().PinsMemory && bytes >= parallelMin {
			slow = append(slow, i)
		} else {
			f(i)
		}
	}
	if len(slow) == 0 {
		return
	}
	var next atomic.Int32
	work := func() {
		for n := int(next.Add(1)) - 1; n < len(slow); n = int(next.Add(1)) - 1 {
			f(slow[n])
		}
	}
	var others sync.WaitGroup
	for range min(len(slow), maxParallel) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
}

// nearNode records which rails are near a region of host memory: those on the same NUMA node.
func (m *Registry) nearNode(r *Region) {
	node := m.set.NodeOf(r.Addr, r.Len)
	for i, rl := range m.set.List {
		if rails.Near(rl.Device(), node) {
			r.near.Or(1 << i)
		}
	}
}

// nearGPU records the rails nearest to GPU memory on the PCI bus, among the rails that reach that memory directly. It records
// none if all distances are equal or unknown.
func (m *Registry) nearGPU(r *Region) {
	nearest, farthest := topo.UnknownPath, topo.SameSlot
	for i := range m.set.List {
		if g := r.onGPU(i); g != nil {
			nearest, farthest = min(nearest, g.Distance()), max(farthest, g.Distance())
		}
	}
	for i := range m.set.List {
		if g := r.onGPU(i); g != nil && nearest < farthest && g.Distance() == nearest {
			r.near.Or(1 << i)
		}
	}
}

// NearRails returns the rails that are near all of the regions, as a bit mask.
func NearRails(regions []*Region) uint64 {
	near := ^uint64(0)
	for _, g := range regions {
		near &= g.near.Load()
	}
	return near
}
