package region

import (
	"errors"
	"fmt"

	"gorail/backend/errcode"
	"gorail/backend/gpu"
	"gorail/backend/provider"
)

// refresh registers a region again if its memory was freed and allocated again at the same address without a deregistration.
// Peers still map the old allocation.
func (m *Registry) refresh(r *Region) {
	m.renewMu.Lock()
	defer m.renewMu.Unlock()
	for _, g := range append([]*Region{r}, r.Slices...) {
		if g.Slices == nil && g.changed() {
			m.reregister(g)
		}
	}
}

// Renew registers a region again, in any case.
func (m *Registry) Renew(r *Region) {
	m.renewMu.Lock()
	defer m.renewMu.Unlock()
	m.reregister(r)
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

func (m *Registry) reregister(r *Region) {
	m.mu.Lock()
	r.stale = true
	holders := map[Holder][]uint64{}
	for _, t := range m.holders.take(r.ID) {
		holders[t] = []uint64{r.ID}
	}
	m.mu.Unlock()
	m.log.Warn("GPU memory was freed without deregistration: registered again at the same address, peers' keys revoked",
		"addr", fmt.Sprintf("%#x", r.Addr), "len", r.Len, "gpu", r.Dev)
	_ = m.takeBack([]*Region{r}, holders, "local memory was freed and registered again") // ignored: the old memory is gone
	_ = m.deregisterRails(r)                                                             // ignored: the old memory is gone, and errors are in the log
	r.Core.Set(r.Addr, r.Len, m.opt.Slots())                                             // clears the keys of rails that refuse the memory now
	fresh := &Region{Claim: r.Claim, Core: r.Core, Access: r.Access}
	m.registerVRAM(fresh)
	m.mu.Lock()
	defer m.mu.Unlock()
	r.mrs, r.vram, r.stale = fresh.mrs, fresh.vram, false
	r.near.Store(fresh.near.Load())
	r.Rails.Store(fresh.Rails.Load())
	m.Regions.mu.Lock()
	r.Refused = fresh.Refused
	m.Regions.mu.Unlock()
	r.Core.SetLive(r.Refused == nil)
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
