package engine

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
	memDRAM = 0
	memVRAM = 1
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
func (e *Engine) registerVRAM(r *region) {
	r.mrs = make([]*mr.Ref[provider.MR], len(e.rails))
	r.vram = make([]*mr.Cache[provider.MR], len(e.rails))
	errs := make([]error, len(e.rails))
	for i, rl := range e.rails {
		if v, ok := rl.Rail.(provider.VRAM); ok {
			r.vram[i] = mr.NewCache[provider.MR](vramRail{v, int(r.Dev)})
		}
	}
	e.eachRail(r.Len, func(i int) {
		if r.vram[i] != nil {
			defer recovered(&errs[i])
			r.mrs[i], _, errs[i] = r.vram[i].Acquire(r.Addr, r.Len)
		}
	})
	e.tellVRAM(r, errs)
	e.registered(r, errs)
	if err := e.checkVRAM(r); r.rails.Load() == 0 && (err == nil || r.mrErr == nil) {
		r.mrErr = err // without one it is staged
	}
	e.nearGPU(r)
}

// tellVRAM says once of each rail how it reaches memory of GPUs by itself, or why it can't, and takes the errors of those out of the list: what
// they can't is no news with every region.
func (e *Engine) tellVRAM(r *region, errs []error) {
	for i, rl := range e.rails {
		if errors.Is(errs[i], provider.ErrNoVRAM) {
			if rl.First("") {
				e.log.Info("memory of GPUs is not registered on a rail", "rail", rl.Name(), "err", errs[i])
			}
			errs[i] = nil
		} else if g := r.onGPU(i); g != nil {
			if rl.First(g.How()) {
				e.log.Info("memory of GPUs is registered on a rail", "rail", rl.Name(), "how", g.How())
			}
			errs[i] = e.flushFor(g)
		}
	}
}

// flushFor makes the application hear of what devices have written to a GPU's memory when the GPU's work sees it, if that takes a flush.
func (e *Engine) flushFor(g provider.GPUMemory) error {
	call, arg := g.Flush()
	if call == nil {
		return nil
	}
	e.flushes.Store(true)
	return e.core.FlushBy(call, arg)
}

// onGPU is the registration of a GPU's memory on a rail that reaches it by itself, else nil.
func (r *region) onGPU(rail int) provider.GPUMemory {
	if r.mrs[rail] == nil {
		return nil
	}
	m, _ := r.mrs[rail].Handle()
	g, _ := m.(provider.GPUMemory)
	return g
}

// cacheOf is where a region is registered on a rail.
func (r *region) cacheOf(rl *rails.Rail) *mr.Cache[provider.MR] {
	if r.vram != nil {
		return r.vram[rl.Index]
	}
	return rl.Cache
}

// refresh registers a region anew whose memory its owner has freed and allocated again at the same address without a word: what peers have
// mapped is the old allocation.
func (e *Engine) refresh(r *region) {
	e.renewMu.Lock()
	defer e.renewMu.Unlock()
	for _, g := range append([]*region{r}, r.parts...) {
		if g.parts == nil && g.changed() {
			e.again(g)
		}
	}
}

func (r *region) changed() bool {
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

func (e *Engine) again(r *region) {
	e.localMu.Lock()
	r.stale = true
	holders := map[*target][]uint64{}
	for t := range r.holders {
		holders[t] = []uint64{r.id}
	}
	e.localMu.Unlock()
	e.log.Warn("memory of a GPU was freed without being deregistered, and is registered again at the same address: peers are told", "addr",
		fmt.Sprintf("%#x", r.Addr), "len", r.Len, "gpu", r.Dev)
	_ = e.takeBack([]*region{r}, holders, "its local memory was freed and registered again") // it is gone already
	_ = e.deregisterRails(r)                                                                 // the memory is gone already; what goes wrong is in the log
	r.core.Set(r.Addr, r.Len, core.Slots(e.opt))                                             // of a rail that refuses now, nothing is left
	fresh := &region{Range: r.Range, core: r.core}
	e.registerVRAM(fresh)
	e.localMu.Lock()
	defer e.localMu.Unlock()
	r.mrs, r.vram, r.near, r.stale = fresh.mrs, fresh.vram, fresh.near, false
	r.rails.Store(fresh.rails.Load())
	e.regions.mu.Lock()
	r.mrErr = fresh.mrErr
	e.regions.mu.Unlock()
	r.core.SetLive(r.mrErr == nil)
}

// refuse ends a registration of a GPU's memory that no rail took: the application hears at once.
func (e *Engine) refuse(r *region, why error) error {
	code := status.ErrBackend
	switch {
	case errors.Is(why, provider.ErrNotThere):
		code = status.ErrInvalidParam
	case gpu.Is(why, gpu.NoLibrary) || gpu.Is(why, gpu.NoDevice):
		code = status.ErrNotSupported
	}
	err := status.Errorf(code, "register %#x+%d of GPU %d: %w", r.Addr, r.Len, r.Dev, why)
	return errors.Join(err, e.Deregister(r.id))
}

func indices(list []*region) []uint32 {
	out := make([]uint32, len(list))
	for i, g := range list {
		out[i] = index(g.id)
	}
	return out
}

// forget unmaps a region of the peer's where that was mapped; nothing is posted on it any more. Under mu.
func (r *remote) forget(g *region) {
	if g.Mem != memVRAM {
		return
	}
	for _, l := range r.links {
		if m, ok := l.ep.(provider.Importer); ok {
			m.Forget(index(g.id))
		}
	}
}

// trouble is why a rail could not copy, last.
func (e *Engine) trouble() string {
	for _, rl := range e.rails {
		if v, ok := rl.Rail.(provider.VRAM); ok {
			if why := v.Trouble(); why != "" {
				return fmt.Sprintf("rail %s: %s", rl.Name(), why)
			}
		}
	}
	return "this memory can't be reached over the rails in use"
}
