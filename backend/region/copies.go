package region

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/wire"
)

// HoldForCopy finds claimed regions of GPU memory and holds them, for a copy that a peer asks for and that needs these rights.
// A deregistration waits until Copied releases them.
func (m *Registry) HoldForCopy(claims []wire.Claim, need option.Rights) ([]*Region, error) {
	list, settled, err := m.holdClaimed(claims, need)
	m.wake(settled)
	return list, err
}

func (m *Registry) holdClaimed(claims []wire.Claim, need option.Rights) (list, settled []*Region, err error) {
	list = make([]*Region, len(claims))
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, c := range claims {
		r := m.claimed(c)
		if r == nil || !r.filled.Load() || r.Mem != VRAM || r.Refused != nil {
			return nil, nil, fmt.Errorf("memory %#x+%d of GPU %d is not registered here", c.Addr, c.Len, c.Dev)
		}
		if !r.Access.Allow(need) {
			return nil, nil, fmt.Errorf("memory %#x+%d of GPU %d is registered with %s=%s", c.Addr, c.Len, c.Dev, option.RemoteAccess, r.Access)
		}
		list[i] = r
	}
	return list, m.hold(list), nil
}

// hold counts a copy of each region, and asks for a look at those that are asleep. It returns what is to be registered again. Under mu.
func (m *Registry) hold(list []*Region) (settled []*Region) {
	see := func(r *Region) {
		switch {
		case !r.asleep():
		case r.sleep.settled.Load():
			settled = append(settled, r)
		case !r.sleep.quiet.Load():
			m.Outdated()
		}
	}
	for _, r := range list {
		r.copies++
		see(r)
		for _, s := range r.Slices {
			see(s)
		}
	}
	return settled
}

func (m *Registry) Copied(list []*Region) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range list {
		if r.copies--; r.copies == 0 {
			r.copiesEnd = time.Time{}
		}
	}
}

// awaitCopies waits for staging copies of regions that are being deregistered. On an idle GPU, such a copy takes as long as one
// slot. The wait ends one second after the deadline, or where an earlier deregistration has waited as long for the same copies. An error
// means that the memory may still be in use.
func (m *Registry) awaitCopies(gone []*Region, deadline time.Time) error {
	for end := deadline.Add(time.Second); m.copying(gone, end); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(m.copiesEnd(gone)) {
			return errors.New("a GPU copy for a staged transfer has not ended within cancel_timeout")
		}
	}
	return nil
}

// copying reports copies of regions in progress. Then all regions with copies are waited for until end: an agent that ends deregisters its
// regions one after the other, and a copy may name many.
func (m *Registry) copying(gone []*Region, end time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	busy := func(r *Region) bool { return r.copies > 0 }
	if !slices.ContainsFunc(gone, busy) {
		return false
	}
	if !slices.ContainsFunc(gone, func(r *Region) bool { return busy(r) && r.copiesEnd.IsZero() }) {
		return true
	}
	for _, r := range slices.AppendSeq(slices.Clone(gone), m.each()) {
		if busy(r) && r.copiesEnd.IsZero() {
			r.copiesEnd = end
		}
	}
	return true
}

// copiesEnd is until when copies of regions are waited for.
func (m *Registry) copiesEnd(gone []*Region) (end time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range gone {
		if r.copies > 0 && r.copiesEnd.After(end) {
			end = r.copiesEnd
		}
	}
	return end
}

// Hold holds local regions of a transfer. HoldForCopy holds regions that a peer names.
func (m *Registry) Hold(list []*Region) error {
	settled, err := m.holdLocal(list)
	m.wake(settled)
	return err
}

func (m *Registry) holdLocal(list []*Region) (settled []*Region, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range list {
		if !r.Core.Live() {
			return nil, errcode.LocalGone.Errorf("memory %#x+%d was deregistered", r.Addr, r.Len)
		}
	}
	return m.hold(list), nil
}

// OnGPU reports whether a claim names registered memory of a GPU.
func (m *Registry) OnGPU(c wire.Claim) bool {
	r := m.Find(c)
	return r != nil && r.Mem == VRAM
}

// GPUs is the number of GPUs with registered memory.
func (m *Registry) GPUs() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	gpus := map[uint64]bool{}
	for rng := range m.local {
		if rng.Mem == VRAM {
			gpus[rng.Dev] = true
		}
	}
	return len(gpus)
}

// checkVRAM checks that memory matches its descriptor. The error is that of a registration.
func (m *Registry) checkVRAM(r *Region) error {
	if r.Dev > 1<<16 {
		return errcode.NotGPUMemory.Errorf("there is no GPU %d", r.Dev)
	}
	return m.gpu.Check(r.Addr, r.Len, int(r.Dev))
}

// Own returns the local region that a region of the session with ourselves stands for, and a local region itself; nil: it was deregistered.
func (m *Registry) Own(g *Region) *Region {
	if g.Peer == nil {
		return g
	}
	return m.Find(g.Claim)
}

// Pin pins a local region until its deregistration.
func (m *Registry) Pin(r *Region) error {
	r.pinMu.Lock()
	defer r.pinMu.Unlock()
	if !r.Core.Live() {
		return fmt.Errorf("memory %#x+%d was deregistered", r.Addr, r.Len)
	}
	if !r.pinned && (r.pinErr == nil || gpu.Is(r.pinErr, gpu.Busy)) {
		if r.pinErr = m.gpu.Pin(r.Addr, r.Len); r.pinErr == nil {
			r.pinned = true
		}
	}
	return r.pinErr
}

// unpinGPU ends the pin. The caller has waited for copies of the region.
func (m *Registry) unpinGPU(r *Region) error {
	r.pinMu.Lock()
	defer r.pinMu.Unlock()
	if !r.pinned {
		return nil
	}
	m.mu.Lock()
	busy := r.copies > 0
	m.mu.Unlock()
	if busy { // the driver would wait for the GPU
		return fmt.Errorf("memory %#x+%d stays pinned: a GPU has not ended a copy of it", r.Addr, r.Len)
	}
	r.pinned = false
	if err := m.gpu.Unpin(r.Addr, r.Len); err != nil {
		return fmt.Errorf("unpin memory for GPU copies: %w", err)
	}
	return nil
}
