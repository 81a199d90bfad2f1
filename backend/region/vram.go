package region

import (
	"errors"
	"fmt"

	"gorail/backend/core"
	"gorail/backend/gpu"
	"gorail/backend/mr"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/status"
)

// Memory types (nixl_mem_t).
const (
	DRAM = 0
	VRAM = 1
)

// vramRail registers memory of one GPU.
type vramRail struct {
	provider.VRAM
	device int
}

func (v vramRail) Register(addr, length uint64) (provider.MR, error) {
	return v.RegisterVRAM(addr, length, v.device)
}

func (v vramRail) Unregister(m provider.MR) error { return m.Close() }

// registerVRAM is registerRails for memory of a GPU. What is at an address may be another allocation the next time, so nothing is shared
// between registrations: each region has a cache of its own.
func (m *Registry) registerVRAM(r *Region) {
	r.mrs = make([]*mr.Ref[provider.MR], len(m.set.List))
	r.vram = make([]*mr.Cache[provider.MR], len(m.set.List))
	errs := make([]error, len(m.set.List))
	for i, rl := range m.set.List {
		if v, ok := rl.Rail.(provider.VRAM); ok {
			r.vram[i] = mr.NewCache[provider.MR](vramRail{v, int(r.Dev)})
		}
	}
	m.eachRail(r.Len, func(i int) {
		if r.vram[i] != nil {
			defer recovered(&errs[i])
			r.mrs[i], _, errs[i] = r.vram[i].Acquire(r.Addr, r.Len)
		}
	})
	m.tellVRAM(r, errs)
	m.registered(r, errs)
	if err := m.checkVRAM(r); r.Rails.Load() == 0 && (err == nil || r.Refused == nil) {
		r.Refused = err // without one it is staged
	}
	m.nearGPU(r)
}

// tellVRAM says once of each rail how it reaches memory of GPUs by itself, or why it can't, and takes the errors of those out of the list: what
// they can't is no news with every region.
func (m *Registry) tellVRAM(r *Region, errs []error) {
	for i, rl := range m.set.List {
		if errors.Is(errs[i], provider.ErrNoVRAM) {
			if rl.First("") {
				m.log.Info("memory of GPUs is not registered on a rail", "rail", rl.Name(), "err", errs[i])
			}
			errs[i] = nil
		} else if g := r.onGPU(i); g != nil {
			if rl.First(g.How()) {
				m.log.Info("memory of GPUs is registered on a rail", "rail", rl.Name(), "how", g.How())
			}
			errs[i] = m.flushFor(g)
		}
	}
}

// flushFor makes the application hear of what devices have written to a GPU's memory when the GPU's work sees it, if that takes a flush.
func (m *Registry) flushFor(g provider.GPUMemory) error {
	call, arg := g.Flush()
	if call == nil {
		return nil
	}
	m.Flushes.Store(true)
	return m.core.FlushBy(call, arg)
}

// OnGPU is the registration of a GPU's memory on a rail that reaches it by itself, else nil.
func (r *Region) onGPU(rail int) provider.GPUMemory {
	if r.mrs[rail] == nil {
		return nil
	}
	m, _ := r.mrs[rail].Handle()
	g, _ := m.(provider.GPUMemory)
	return g
}

// cacheOf is where a region is registered on a rail.
func (r *Region) cacheOf(rl *rails.Rail) *mr.Cache[provider.MR] {
	if r.vram != nil {
		return r.vram[rl.Index]
	}
	return rl.Cache
}

// refresh registers a region anew whose memory its owner has freed and allocated again at the same address without a word: what peers have
// mapped is the old allocation.
func (m *Registry) refresh(r *Region) {
	m.renewMu.Lock()
	defer m.renewMu.Unlock()
	for _, g := range append([]*Region{r}, r.Parts...) {
		if g.Parts == nil && g.changed() {
			m.again(g)
		}
	}
}

// Renew registers a region anew, whatever has become of its memory.
func (m *Registry) Renew(r *Region) {
	m.renewMu.Lock()
	defer m.renewMu.Unlock()
	m.again(r)
}

func (r *Region) changed() bool {
	for _, ref := range r.mrs {
		if ref == nil {
			continue
		}
		if m, has := ref.Handle(); has {
			if n, ok := m.(provider.Renewable); ok && n.Same() != nil {
				return true
			}
		}
	}
	return false
}

func (m *Registry) again(r *Region) {
	m.mu.Lock()
	r.stale = true
	holders := map[Holder][]uint64{}
	for t := range r.holders {
		holders[t] = []uint64{r.ID}
	}
	m.mu.Unlock()
	m.log.Warn("memory of a GPU was freed without being deregistered, and is registered again at the same address: peers are told", "addr",
		fmt.Sprintf("%#x", r.Addr), "len", r.Len, "gpu", r.Dev)
	_ = m.takeBack([]*Region{r}, holders, "its local memory was freed and registered again") // it is gone already
	_ = m.deregisterRails(r)                                                                 // the memory is gone already; what goes wrong is in the log
	r.Core.Set(r.Addr, r.Len, core.Slots(m.opt.MaxRails))                                    // of a rail that refuses now, nothing is left
	fresh := &Region{Range: r.Range, Core: r.Core}
	m.registerVRAM(fresh)
	m.mu.Lock()
	defer m.mu.Unlock()
	r.mrs, r.vram, r.near, r.stale = fresh.mrs, fresh.vram, fresh.near, false
	r.Rails.Store(fresh.Rails.Load())
	m.Regions.mu.Lock()
	r.Refused = fresh.Refused
	m.Regions.mu.Unlock()
	r.Core.SetLive(r.Refused == nil)
}

// refuse ends a registration of a GPU's memory that no rail took: the application hears at once.
func (m *Registry) refuse(r *Region, why error) error {
	code := status.ErrBackend
	switch {
	case errors.Is(why, provider.ErrNotThere):
		code = status.ErrInvalidParam
	case gpu.Is(why, gpu.NoLibrary) || gpu.Is(why, gpu.NoDevice):
		code = status.ErrNotSupported
	}
	err := status.Errorf(code, "register %#x+%d of GPU %d: %w", r.Addr, r.Len, r.Dev, why)
	return errors.Join(err, m.Deregister(r.ID))
}

func Indices(list []*Region) []uint32 {
	out := make([]uint32, len(list))
	for i, g := range list {
		out[i] = Index(g.ID)
	}
	return out
}
