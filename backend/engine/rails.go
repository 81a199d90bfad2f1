package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"gorail/backend/mr"
	"gorail/backend/provider"
	"gorail/backend/rail"
	"gorail/backend/status"
	"gorail/backend/topo"
)

// railState is an open rail with its registrations.
type railState struct {
	provider.Rail
	index int
	caps  provider.Caps
	late  *lateRail // Rail, where its interface was down when the engine was made; else nil
	keys  *mr.KeyAllocator
	cache *mr.Cache[provider.MR]

	fences, stalls atomic.Uint64 // of all its links
	told           sync.Map      // what the log has of it once, see first
}

func (r *railState) name() string {
	d := r.Device()
	return d.Fabric + "/" + d.Name
}

// addr is the rail's IP address; the zero Addr when it has none.
func (r *railState) addr() netip.Addr {
	a, _ := netip.ParseAddr(r.Device().Addr)
	return a
}

// registrar lets the cache register on a rail.
type registrar struct{ r *railState }

func (g registrar) Register(addr, length uint64) (provider.MR, error) {
	if g.r.caps.ProviderKeys {
		return g.r.Rail.Register(addr, length, 0)
	}
	var taken error
	for range keyTries {
		key, err := g.r.keys.Alloc()
		if err != nil {
			return nil, errors.Join(taken, err)
		}
		m, err := g.r.Rail.Register(addr, length, key)
		if err == nil {
			return ownKey{m, g.r.keys, key}, nil
		}
		defer g.r.keys.Free(key) // not before the loop ends: the next draw must not give it again
		if taken = err; !errors.Is(err, syscall.ENOKEY) {
			break
		}
	}
	return nil, taken
}

// keyTries bounds the keys that are tried for one registration. The fabric has registrations that our allocator does not
// know: message buffers of the core, memory of GPUs.
const keyTries = 64

func (g registrar) Unregister(m provider.MR) error { return m.Close() }

// ownKey gives a key of ours back with its region.
type ownKey struct {
	provider.MR
	keys *mr.KeyAllocator
	key  uint64
}

func (e *Engine) openRails(prov provider.Provider, found []provider.Device, m *topo.Machine) error {
	chosen, late, left := e.choose(found, m)
	var last error
	for _, d := range chosen {
		r, err := prov.Open(d)
		if err != nil {
			last = err
			e.log.Warn("rail dropped", "device", rail.Name(d), "err", err)
			left = append(left, rail.Left{Device: d, Reason: err.Error()})
			continue
		}
		notes := r.Notes()
		if e.opt.QPsPerRail > 1 && r.Caps().SharedEndpoint {
			notes = append(notes, "option qps_per_rail has no effect: one endpoint serves all peers")
		}
		for _, note := range notes {
			e.log.Warn("rail", "device", rail.Name(d), "note", note)
		}
		rs := &railState{Rail: r, caps: r.Caps()}
		rs.cache = mr.NewCache[provider.MR](registrar{rs})
		if rs.keys, err = mr.NewKeyAllocator(max(1, min(8, rs.caps.KeySize))); err == nil {
			rs.index, err = e.core.AddRail(r.Core())
		}
		if err != nil {
			r.Close()
			return status.Errorf(status.ErrBackend, "rail %s: %w", d.Name, err)
		}
		e.rails = append(e.rails, rs)
	}
	if err := e.addLate(late); err != nil {
		return status.Errorf(status.ErrBackend, "%w", err)
	}
	e.tellRails(left)
	e.findNodes()
	if len(e.rails) == 0 {
		if last == nil {
			last = fmt.Errorf("%w: %s", provider.ErrNoDevice, rail.Reasons(left))
		}
		return status.Errorf(status.ErrBackend, "no rail could be opened (options provider=%v devices=%v): %w", e.opt.Provider, e.opt.Devices, last)
	}
	return nil
}

func (k ownKey) Close() error {
	err := k.MR.Close()
	k.keys.Free(k.key)
	return err
}
