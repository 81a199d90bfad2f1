package engine

import (
	"errors"
	"fmt"
	"slices"

	"gorail/backend/fastpath"
	"gorail/backend/gpu"
	"gorail/backend/mr"
	"gorail/backend/provider"
	"gorail/backend/rail"
	"gorail/backend/stage"
	"gorail/backend/status"
)

// Memory types (nixl_mem_t).
const memVRAM = 1

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
			func() {
				defer recovered(&errs[i])
				r.mrs[i], _, errs[i] = r.vram[i].Acquire(r.Addr, r.Len)
			}()
		}
	}
	e.registered(r, errs)
	if err := e.checkVRAM(r); r.rails.Load() == 0 && (err == nil || r.mrErr == nil) {
		r.mrErr = err // without one it is staged
	}
}

// cacheOf is where a region is registered on a rail.
func (r *region) cacheOf(rl *railState) *mr.Cache[provider.MR] {
	if r.vram != nil {
		return r.vram[rl.index]
	}
	return rl.cache
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
	e.takeBack([]*region{r}, holders, "its local memory was freed and registered again")
	_ = e.deregisterRails(r)                         // the memory is gone already; what goes wrong is in the log
	r.core.Set(r.Addr, r.Len, fastpath.Slots(e.opt)) // of a rail that refuses now, nothing is left
	fresh := &region{Range: r.Range, core: r.core}
	e.registerVRAM(fresh)
	e.localMu.Lock()
	defer e.localMu.Unlock()
	r.mrs, r.vram, r.stale = fresh.mrs, fresh.vram, false
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
	case errors.Is(why, provider.ErrNotThere) || errors.Is(why, stage.ErrMemory):
		code = status.ErrInvalidParam
	case gpu.Is(why, gpu.NoLibrary) || gpu.Is(why, gpu.NoDevice):
		code = status.ErrNotSupported
	}
	err := status.Errorf(code, "register %#x+%d of GPU %d: %w", r.Addr, r.Len, r.Dev, why)
	return errors.Join(err, e.Deregister(r.id))
}

// classify finds what memory a transfer is between, and whether links carry it: a rail that copies GPUs' memory whole, rails that have it
// registered as any other, or none, which is staging.
func (v *resolver) classify(t *transfer) error {
	mixed := false
	for i, list := range [][]*region{v.locals.list, v.remotes.list} {
		for _, g := range list {
			if g.Mem != list[0].Mem || g.Mem == memVRAM && g.Dev != list[0].Dev {
				mixed = true
			}
		}
		if i == 0 {
			t.class.lmem, t.class.ldev = list[0].Mem, list[0].Dev
		} else {
			t.class.rmem, t.class.rdev = list[0].Mem, list[0].Dev
		}
	}
	c := t.class
	switch {
	case mixed:
		t.staged = true
	case !c.vram():
	case c.gpus() && v.peer.mapsRings() && v.e.onBulk(v.locals.list):
		t.bulk = true
		t.staged = len(v.remotes.list) == 1 && v.remotes.list[0].apart.Load()
		t.tried = t.staged
	default:
		t.staged = !slices.ContainsFunc(v.peer.pairs, func(p rail.Pair) bool { return v.e.rails[p.Own].direct() })
	}
	if t.staged {
		t.bulk = false
		if t.inner != nil {
			return status.Errorf(status.ErrNotSupported, "prepare: %w", errUnreachable)
		}
	}
	return nil
}

// bulk says that the rail copies memory of GPUs whole, between GPUs of one host.
func (r *railState) bulk() bool {
	_, ok := r.Rail.(provider.VRAM)
	return ok
}

// direct says that the rail moves memory of GPUs as it moves the host's.
func (r *railState) direct() bool { return false }

// moves says whether the rail moves bytes between such memories, where both are registered on it: GPUs' as one post, or as any other.
func (r *railState) moves(c class, bulk bool) bool { return !c.vram() || r.bulk() == bulk }

// onBulk says that a rail that copies memory of GPUs has all of it.
func (e *Engine) onBulk(locals []*region) bool {
	have := ^uint64(0)
	for _, g := range locals {
		have &= g.rails.Load()
	}
	return slices.ContainsFunc(e.rails, func(r *railState) bool { return r.bulk() && have&(1<<r.index) != 0 })
}

// mapsRings says that a rail of ours copies to memory of the peer's GPUs.
func (r *remote) mapsRings() bool {
	return slices.ContainsFunc(r.pairs, func(p rail.Pair) bool { return r.e.rails[p.Own].bulk() })
}

// bulk makes a transfer of GPUs' memory one post of the rail that has it. The operations are there.
func (e *Engine) bulk(x fastpath.Xfer, locals, remotes []*region) error {
	for i, rl := range e.rails {
		if rl.bulk() {
			if err := e.core.Bulk(x, i, indices(locals), indices(remotes)); err != nil {
				return status.Errorf(status.ErrBackend, "prepare: no pinned memory for the operations of a copy between GPUs: %w", err)
			}
			return nil
		}
	}
	return status.Errorf(status.ErrNotSupported, "prepare: %w", errUnreachable)
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
				return fmt.Sprintf("rail %s: %s", rl.name(), why)
			}
		}
	}
	return "this memory can't be reached over the rails in use"
}
