package region

import (
	"errors"
	"fmt"

	"gorail/backend/core"
	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/backend/status"
)

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
