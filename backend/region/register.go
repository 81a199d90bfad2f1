package region

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"gorail/backend/core"
	"gorail/backend/mr"
	"gorail/backend/provider"
)

// How rails that pin memory are registered with: side by side, a few at a time (each holds a thread in the kernel), and
// one after the other below a size at which starting goroutines costs as much as the pages.
const (
	mostAtOnce = 8
	sideBySide = 64 << 10
)

// registerRails registers a region on every rail, and notes which refuse it and why. Before the region is ready.
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
			return // see join
		}
		r.mrs[i], _, errs[i] = m.set.List[i].Cache.Acquire(r.Addr, r.Len)
	})
	m.registered(r, errs)
}

// registered notes which rails have it. Those that were not asked have neither.
func (m *Registry) registered(r *Region, errs []error) {
	for i, rl := range m.set.List {
		if err := errs[i]; err != nil {
			if r.Refused == nil {
				r.Refused = fmt.Errorf("rail %s: %w", rl.Name(), err)
			}
			m.log.Warn("memory not registered on a rail", "rail", rl.Name(), "addr", fmt.Sprintf("%#x", r.Addr), "len", r.Len, "err", err)
			continue
		}
		if r.mrs[i] == nil {
			continue
		}
		r.Rails.Or(1 << i)
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

// recovered turns a panic into an error: the call may be on a goroutine of its own.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %v", mr.ErrPanic, p)
	}
}

// deregisterRails ends a region's registrations. The error is of rails that can't promise that nobody touches the memory any more.
func (m *Registry) deregisterRails(r *Region) error {
	if r.Parts != nil {
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
			m.log.Warn("closing a memory region", "rail", m.set.List[i].Name(), "err", err)
			errs[i] = fmt.Errorf("rail %s: %w", m.set.List[i].Name(), err)
		}
	}
	return errors.Join(append(errs, m.unpinGPU(r))...)
}

// eachRail calls f for every rail and returns when all have: at the same time for those that pin so many bytes, else in
// turn.
func (m *Registry) eachRail(bytes uint64, f func(rail int)) {
	var slow []int
	for i, rl := range m.set.List {
		if rl.Can.PinsMemory && bytes >= sideBySide {
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
	for range min(len(slow), mostAtOnce) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
}
