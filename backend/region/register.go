package region

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/mr"
	"gorail/backend/provider"
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
	r.mrs = make([]*mr.Ref[provider.MR], len(m.set.List))
	errs := make([]error, len(m.set.List))
	m.eachRail(r.Len, func(i int) {
		defer recovered(&errs[i])
		if !m.set.List[i].Opened() {
			return // FillRail registers the region once the rail is open
		}
		r.mrs[i], _, errs[i] = m.set.List[i].Cache(r.Access).Acquire(r.Addr, r.Len)
	})
	m.registered(r, errs)
}

// registered records which rails have the region. A rail that was not tried has neither a registration nor an error.
func (m *Registry) registered(r *Region, errs []error) {
	for i, rl := range m.set.List {
		if err := errs[i]; err != nil {
			if r.Refused == nil {
				r.Refused = fmt.Errorf("rail %s: %w", rl.Name(), err)
			}
			m.log.Warn("memory not registered on a rail", "rail", rl.Name(), "addr", fmt.Sprintf("%#x", r.Addr), "len", r.Len, "err", err,
				errcode.Key, errcode.MemoryNotOnRail)
			continue
		}
		if r.mrs[i] == nil {
			continue
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
	if r.Rails.Load() != 0 {
		r.Refused = nil
	}
}

// recovered turns a panic into an error, because the call may run in its own goroutine.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %v", mr.ErrPanic, p)
	}
}

// deregisterRails ends the registrations of a region. An error means that a rail cannot guarantee that the memory is no longer
// accessed.
func (m *Registry) deregisterRails(r *Region) error {
	if r.Slices != nil {
		return nil
	}
	errs := make([]error, len(m.set.List), len(m.set.List)+1)
	m.eachRail(r.Len, func(i int) {
		defer recovered(&errs[i])
		if r.mrs[i] != nil {
			_, errs[i] = r.cacheOf(m.set.List[i]).Release(r.mrs[i])
		}
	})
	for i, err := range errs {
		if err != nil {
			m.log.Warn("closing a memory region failed", "rail", m.set.List[i].Name(), "err", err)
			errs[i] = fmt.Errorf("rail %s: %w", m.set.List[i].Name(), err)
		}
	}
	return errors.Join(append(errs, m.unpinGPU(r))...)
}

// eachRail calls f for every rail and waits for all calls. Rails that pin memory are called in parallel from parallelMin bytes
// on, others in turn.
func (m *Registry) eachRail(bytes uint64, f func(rail int)) {
	var slow []int
	for i, rl := range m.set.List {
		if rl.Can.PinsMemory && bytes >= parallelMin {
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
