package region

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/gpu"
	"gorail/backend/mr"
	"gorail/backend/provider"
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

// Recheck looks at all registered GPU memory. What is not what was registered goes to sleep: peers give it up, and transfers go over bounce
// buffers, by addresses. It is registered again when it was the same in two looks: the application may be at work on it, and the driver does
// not bear other questions meanwhile (gpu/parts.c). It takes 0.1 us for each VMM handle. soon: look again after Settled.
func (m *Registry) Recheck() (soon bool) {
	if !m.HasVRAM.Load() {
		return false
	}
	m.renewals.Lock()
	defer m.renewals.Unlock()
	var sleep, wake []*Region
	for _, r := range m.All() {
		switch {
		case r.Mem != VRAM || r.Slices != nil || !r.filled.Load() || r.Refused != nil:
		case r.asleep:
			if is := m.copier.Identity(r.Addr, r.Len); is != r.found {
				r.found, r.foundAt = is, time.Now()
			}
			if r.found == 0 {
				continue
			}
			if time.Since(r.foundAt) >= Settled {
				wake = append(wake, r)
			} else {
				soon = true
			}
		case r.outdated():
			sleep, soon, r.found = append(sleep, r), true, 0
		}
	}
	m.reregister(sleep, (*Registry).unregistered)
	m.reregister(wake, (*Registry).registerAgain)
	return soon
}

// Settled is how long memory must stay as it is before it is registered again.
const Settled = 50 * time.Millisecond

// refresh looks at a range that is registered once more: the application may have freed the memory, and allocated it again.
func (m *Registry) refresh(r *Region) {
	m.renewals.Lock()
	defer m.renewals.Unlock()
	all := append([]*Region{r}, r.Slices...)
	m.reregister(slices.DeleteFunc(all, func(g *Region) bool { return g.Slices != nil || !g.asleep && !g.outdated() }), (*Registry).registerAgain)
}

// Renew registers a region again, in any case.
func (m *Registry) Renew(r *Region) {
	m.renewals.Lock()
	defer m.renewals.Unlock()
	m.reregister([]*Region{r}, (*Registry).registerAgain)
}

func (r *Region) outdated() bool {
	for _, ref := range r.mrs {
		if ref == nil {
			continue
		}
		if h, has := ref.Handle(); has {
			if n, ok := h.(provider.Renewable); ok && n.Same() != nil {
				return true
			}
		}
	}
	return false
}

// former is what a region had before.
type former struct {
	r      *Region
	mrs    []*mr.Ref[provider.MR]
	vram   []*mr.Cache[provider.MR]
	pinned bool // a device works on the memory
}

// reregister gives regions new registrations, and takes the peers' keys back. Under renewals.
func (m *Registry) reregister(list []*Region, again func(*Registry, *Region) *Region) {
	if len(list) == 0 {
		return
	}
	gone := make([]former, 0, len(list))
	holders := map[Holder][]uint64{}
	for _, r := range list {
		pinned := m.pins(r)
		if pinned {
			r.Core.SetLive(false)
			m.users.EndTransfers([]*Region{r}, time.Now().Add(m.opt.CancelTimeout), "other GPU memory was mapped at its address")
		}
		fresh := again(m, r)
		m.mu.Lock()
		gone = append(gone, former{r, r.mrs, r.vram, pinned})
		m.adopt(r, fresh)
		for _, t := range m.holders.take(r.ID) {
			holders[t] = append(holders[t], r.ID)
		}
		m.mu.Unlock()
	}
	m.logRenewed(list)
	m.takeKeys(gone, holders)
	for _, g := range gone {
		_ = m.deregisterRails(&Region{Claim: g.r.Claim, registration: registration{mrs: g.mrs, vram: g.vram}}) // ignored: the memory is gone, and errors are in the log
	}
}

// registerAgain makes new registrations of the range; none if not all of it is mapped.
func (m *Registry) registerAgain(r *Region) *Region {
	if m.checkVRAM(r) != nil {
		return m.unregistered(r)
	}
	fresh := &Region{Claim: r.Claim, Core: r.Core, Access: r.Access}
	m.registerVRAM(fresh)
	fresh.asleep = fresh.Rails.Load() == 0 && r.mrs != nil && fresh.Refused != nil
	return fresh
}

// unregistered is the range without registrations.
func (m *Registry) unregistered(r *Region) *Region {
	n := len(m.set.List)
	return &Region{Claim: r.Claim, registration: registration{mrs: make([]*mr.Ref[provider.MR], n), vram: make([]*mr.Cache[provider.MR], n), asleep: true}}
}

// adopt gives a region new registrations. Posts may read the keys meanwhile: what the old ones name lives on until copies that were
// posted with them have ended. Under mu.
func (m *Registry) adopt(r, fresh *Region) {
	r.mrs, r.vram, r.asleep = fresh.mrs, fresh.vram, fresh.asleep
	r.near.Store(fresh.near.Load())
	r.Rails.Store(fresh.Rails.Load())
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
			if r.asleep != asleep {
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
		if ref != nil && m.set.List[i].Can.PinsMemory {
			return true
		}
	}
	return false
}

// lateAfter is how long peers have to unmap memory before the log names them.
const lateAfter = 2 * time.Second

// takeKeys takes the peers' keys of regions back. A device that pins the old memory must be done with it. Copies of other processes
// are confirmed by us, so we do not wait for a stopped peer: it unmaps the memory when it continues.
func (m *Registry) takeKeys(gone []former, holders map[Holder][]uint64) {
	pinned := slices.ContainsFunc(gone, func(f former) bool { return f.pinned })
	deadline := time.Now().Add(m.opt.CancelTimeout)
	answers := map[Holder]<-chan struct{}{}
	for t, ids := range holders {
		answers[t] = t.Renew(ids)
	}
	for t, answer := range answers {
		if pinned {
			t.AwaitRevoked(answer, deadline)
			continue
		}
		go func() {
			select {
			case <-answer:
			case <-time.After(lateAfter):
				t.Late()
			}
		}()
	}
}

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
