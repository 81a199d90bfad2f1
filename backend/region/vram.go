package region

import (
	"errors"

	"gorail/backend/provider"
	"gorail/backend/rails"
)

// registerVRAM is registerRails for GPU memory. An address may belong to another allocation the next time, so registrations
// share nothing.
func (m *Registry) registerVRAM(r *Region) {
	defer m.gpu.Registering(r.Addr, r.Len)()
	if !m.HasVRAM.Swap(true) {
		m.Outdated() // looks begin
	}
	r.mrs = make([]*rails.Ref[provider.MR], len(m.set.List))
	errs := make([]error, len(m.set.List))
	on := m.set.ForGPU(func() string { return m.gpu.Address(int(r.Dev)) })
	m.eachRail(on, r.Len, func(i int) {
		defer recovered(&errs[i])
		rl := m.set.List[i]
		if errs[i] = rl.Need(); errs[i] != nil {
			return
		}
		v, ok := rl.Inner().(provider.VRAM)
		switch {
		case !ok:
		case r.Len == 0: // nothing is there to register
			r.mrs[i] = &rails.Ref[provider.MR]{}
		default:
			var mr provider.MR
			if mr, errs[i] = v.RegisterVRAM(r.Addr, r.Len, int(r.Dev), r.Access); errs[i] == nil {
				r.mrs[i] = m.vram.Adopt(r.Addr, r.Len, mr)
			}
		}
	})
	m.logVRAM(r, errs)
	for i, err := range errs {
		m.registered(r, i, err)
	}
	if r.Rails.Load() != 0 {
		r.Refused = nil
	}
	if err := m.checkVRAM(r); r.Rails.Load() == 0 && (err == nil || r.Refused == nil) {
		r.Refused = err // nil: the memory is staged
	}
	m.nearGPU(r)
}

// logVRAM logs once per rail how the rail reaches GPU memory directly, or why it cannot. Errors of rails without GPU support
// are removed from the list, so that they are not logged for each region.
func (m *Registry) logVRAM(r *Region, errs []error) {
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

// flushFor installs the flush that makes device writes visible to the GPU's work, if one is needed. The application learns of
// such writes after the flush.
func (m *Registry) flushFor(g provider.GPUMemory) error {
	call, arg := g.Flush()
	if call == nil {
		return nil
	}
	m.Flushes.Store(true)
	return m.core.FlushBy(call, arg)
}
