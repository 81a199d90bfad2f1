package region

import (
	"context"
	"fmt"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/rails"
)

// FillRail registers all local host memory on a rail that has just been opened. It fails only if ctx ends first: the engine
// closes.
func (m *Registry) FillRail(ctx context.Context, r *rails.Rail) error {
	all := m.All()
	m.Settle()
	for _, g := range all {
		if g.ready != nil { // nil: Settle has filled the region
			select {
			case <-g.ready:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		m.mu.Lock()
		if g.refs > 0 && g.Slices == nil && g.Mem == DRAM && g.mrs[r.Index] == nil {
			m.registerOn(g, r)
		}
		m.mu.Unlock()
	}
	return nil
}

// registerOn registers one region on one more rail. Only users of that rail read the entries that it writes. Under mu.
func (m *Registry) registerOn(g *Region, r *rails.Rail) {
	ref, _, err := r.Cache(g.Access).Acquire(g.Addr, g.Len)
	if err != nil {
		m.log.Warn("memory not registered on a rail", "rail", r.Name(), "addr", fmt.Sprintf("%#x", g.Addr), "len", g.Len, "err", err,
			errcode.Key, errcode.MemoryNotOnRail)
		return
	}
	g.mrs[r.Index] = ref
	key := core.Key{}
	if m, has := ref.Handle(); has {
		key.Desc = m.Desc()
	}
	g.Core.SetKey(r.Index, key)
	g.Rails.Or(1 << r.Index)
}
