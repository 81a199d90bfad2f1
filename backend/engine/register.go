package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"gorail/backend/core"
	"gorail/backend/mr"
	"gorail/backend/provider"
	"gorail/backend/wire"
)

// How rails that pin memory are registered with: side by side, a few at a time (each holds a thread in the kernel), and
// one after the other below a size at which starting goroutines costs as much as the pages.
const (
	mostAtOnce = 8
	sideBySide = 64 << 10
)

// registerRails registers a region on every rail, and notes which refuse it and why. Before the region is ready.
func (e *Engine) registerRails(r *region) {
	if r.Mem == memVRAM {
		e.registerVRAM(r)
		return
	}
	r.mrs = make([]*mr.Ref[provider.MR], len(e.rails))
	errs := make([]error, len(e.rails))
	e.eachRail(r.Len, func(i int) {
		defer recovered(&errs[i])
		if !e.rails[i].Opened() {
			return // see join
		}
		r.mrs[i], _, errs[i] = e.rails[i].Cache.Acquire(r.Addr, r.Len)
	})
	e.registered(r, errs)
}

// registered notes which rails have it. Those that were not asked have neither.
func (e *Engine) registered(r *region, errs []error) {
	for i, rl := range e.rails {
		if err := errs[i]; err != nil {
			if r.mrErr == nil {
				r.mrErr = fmt.Errorf("rail %s: %w", rl.Name(), err)
			}
			e.log.Warn("memory not registered on a rail", "rail", rl.Name(), "addr", fmt.Sprintf("%#x", r.Addr), "len", r.Len, "err", err)
			continue
		}
		if r.mrs[i] == nil {
			continue
		}
		r.rails.Or(1 << i)
		key := core.Key{}
		if m, has := r.mrs[i].Handle(); has {
			key.Desc = m.Desc()
		}
		r.core.SetKey(i, key)
	}
	if r.rails.Load() != 0 {
		r.mrErr = nil
	}
}

// recovered turns a panic into an error: the call may be on a goroutine of its own.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %v", mr.ErrPanic, p)
	}
}

// deregisterRails ends a region's registrations. The error is of rails that can't promise that nobody touches the memory any more.
func (e *Engine) deregisterRails(r *region) error {
	if r.parts != nil {
		return nil
	}
	errs := make([]error, len(e.rails), len(e.rails)+1)
	e.eachRail(r.Len, func(i int) {
		defer recovered(&errs[i])
		if r.mrs[i] != nil {
			_, errs[i] = r.cacheOf(e.rails[i]).Release(r.mrs[i])
		}
	})
	for i, err := range errs {
		if err != nil {
			e.log.Warn("closing a memory region", "rail", e.rails[i].Name(), "err", err)
			errs[i] = fmt.Errorf("rail %s: %w", e.rails[i].Name(), err)
		}
	}
	return errors.Join(append(errs, e.unpinGPU(r))...)
}

// eachRail calls f for every rail and returns when all have: at the same time for those that pin so many bytes, else in
// turn.
func (e *Engine) eachRail(bytes uint64, f func(rail int)) {
	var slow []int
	for i, rl := range e.rails {
		if rl.Can.Pins && bytes >= sideBySide {
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

// railKeys are the keys that a peer needs for a region of ours.
func (r *region) railKeys() []wire.RailKey {
	var keys []wire.RailKey
	for i, ref := range r.mrs {
		if ref == nil {
			continue
		}
		if m, has := ref.Handle(); has {
			base, _ := ref.Range()
			keys = append(keys, wire.RailKey{Rail: uint8(i), Key: m.Key(), Base: m.Base() + (r.Addr - base)})
		}
	}
	return keys
}
