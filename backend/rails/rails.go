package rails

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/failpoint"
	"gorail/backend/limits"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/topo"
)

// Set holds the rails of an engine: the open rails, and the rails that wait for their device. List does not change after
// Open.
type Set struct {
	opt  option.Options
	log  *slog.Logger
	prov provider.Provider
	core *core.Core
	Nets func() []topo.Interface
	List []*Rail

	Version string // GORAIL's, for the log

	Nodes func(addr, length uint64) (int, error) // topo.NodeOf; nil: the rails are not on several NUMA nodes
}

// New returns a Set without rails; Open adds them. nets may be nil: the kernel's network interfaces.
func New(opt option.Options, log *slog.Logger, prov provider.Provider, c *core.Core, nets func() []topo.Interface) *Set {
	if nets == nil {
		nets = netInterfaces
	}
	return &Set{opt: opt, log: log, prov: prov, core: c, Nets: nets}
}

// Devices are the devices of all rails.
func (s *Set) Devices() []provider.Device {
	d := make([]provider.Device, len(s.List))
	for i, r := range s.List {
		d[i] = r.Device()
	}
	return d
}

// FirstShard returns the first rail over the device of a rail. The shards of a device go up and down together.
func (s *Set) FirstShard(n int) int {
	of := s.List[n].Device()
	return slices.IndexFunc(s.List, func(r *Rail) bool { d := r.Device(); return d.Fabric == of.Fabric && d.Name == of.Name })
}

// LogReports logs what the rails report.
func (s *Set) LogReports() {
	for _, rl := range s.List {
		if t, ok := rl.Inner().(provider.Host); ok {
			for _, line := range t.Reports() {
				s.log.Info(line, "rail", rl.Name())
			}
		}
	}
}

// Warnings logs problems that the rails have found and an operator should fix.
func (s *Set) Warnings() {
	for _, rl := range s.List {
		if w, ok := rl.Inner().(provider.Reporter); ok {
			for _, line := range w.Warnings() {
				s.log.Warn(line, "rail", rl.Name())
			}
		}
	}
}

// Limited sums what the rails report of their own bounds, by limit. See provider.Reporter.
func (s *Set) Limited() map[limits.Limit]uint64 {
	all := map[limits.Limit]uint64{}
	for _, rl := range s.List {
		if l, ok := rl.Inner().(provider.Reporter); ok {
			for limit, n := range l.Limited() {
				all[limit] += n
			}
		}
	}
	return all
}

// Close closes the rails one after the other. Nothing is registered on them any more. do runs each close, which may wait for a GPU.
func (s *Set) Close(do func(what string, closing func())) {
	for _, r := range s.List {
		do("rail "+r.Name(), func() {
			if err := r.Close(); err != nil {
				s.log.Warn("closing a rail failed", "rail", r.Name(), "err", err)
			}
		})
	}
}

// Rail is a rail with its registrations.
type Rail struct {
	provider.Rail
	Index int
	Can   provider.Caps
	late  *lateRail // the same as Rail if its interface was down when the engine was made; else nil
	keys  *KeyAllocator
	cache [option.PeersBoth + 1]*Cache[provider.MR] // by the access of peers: one key gives one access

	Fences, Stalls atomic.Uint64 // of all links on the rail
	logged         sync.Map      // the messages that were logged once: see First
	lost           atomic.Pointer[error]
	Away           atomic.Bool // its interface has not its address: it gets another one soon, or is lost
}

// Joins returns true if the rail's device was down when the engine was made, and the rail is opened later.
func (r *Rail) Joins() bool { return r.late != nil }

// Name is the names of the fabric and of the device: "verbs/mlx5_0".
func (r *Rail) Name() string {
	return Name(r.Device())
}

// Addr is the rail's IP address; the zero Addr if the rail has none.
func (r *Rail) Addr() netip.Addr {
	a, _ := netip.ParseAddr(r.Device().Addr)
	return a
}

// OpenEndpoint implements provider.Rail.
func (r *Rail) OpenEndpoint() (provider.Endpoint, error) {
	if err := failpoint.Fail("engine_endpoint"); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", provider.ErrEndpoint, r.Name(), err)
	}
	return r.Rail.OpenEndpoint()
}

// Cache is the registration cache for memory with that access of peers.
func (r *Rail) Cache(peers option.Rights) *Cache[provider.MR] { return r.cache[peers] }

// newRail returns a rail with empty caches.
func (s *Set) newRail(r provider.Rail) *Rail {
	rs := &Rail{Rail: r, Can: r.Caps()}
	sharing := Around
	if !s.opt.SharedKeys {
		sharing = Exact
	}
	for peers := range rs.cache {
		rs.cache[peers] = NewCache(registrar{rs, option.Rights(peers)}.register, provider.MR.Close, sharing)
	}
	return rs
}

// registrar registers memory on a rail for a cache.
type registrar struct {
	r     *Rail
	peers option.Rights
}

func (g registrar) register(addr, length uint64) (provider.MR, error) {
	if err := failpoint.Fail("engine_register"); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", provider.ErrRegister, g.r.Name(), err)
	}
	if g.r.Can.ProviderKeys {
		return g.r.Rail.Register(addr, length, 0, g.peers)
	}
	var taken error
	for range keyTries {
		key, err := g.r.keys.Alloc()
		if err != nil {
			return nil, errors.Join(taken, err)
		}
		m, err := g.r.Rail.Register(addr, length, key, g.peers)
		if err == nil {
			return ownKey{m, g.r.keys, key}, nil
		}
		defer g.r.keys.Free(key) // after the loop: the next Alloc must not return the same key
		if taken = err; !errors.Is(err, syscall.ENOKEY) {
			break
		}
	}
	return nil, taken
}

// keyTries limits the keys that are tried for one registration. The fabric may have registrations that our allocator
// does not know: message buffers of the core, memory of GPUs.
const keyTries = 64

// ownKey frees a key of our allocator with its region.
type ownKey struct {
	provider.MR
	keys *KeyAllocator
	key  uint64
}

// Open opens the chosen devices as rails, and adds the late rails. It returns an error if there is no rail.
func (s *Set) Open(found []provider.Device, m *topo.Machine) error {
	chosen, late, left := s.Choose(found, m)
	var last error
	// The first shards of late rails, too, come before further shards: a peer with fewer threads has no key slots for those behind.
	for _, d := range Shards(slices.Concat(chosen, late), s.opt.Slots()) {
		if slices.ContainsFunc(late, func(l provider.Device) bool { return l.Name == d.Name && l.Fabric == d.Fabric }) {
			if err := s.addLate(d); err != nil {
				return errcode.RailNotMade.Errorf("rail %s: %w", Name(d), err)
			}
			continue
		}
		r, err := s.prov.Open(d)
		if err != nil {
			last = err
			s.log.Warn("rail not used: its device did not open", "device", Name(d), "err", err, errcode.Key, errcode.RailNotUsed)
			left = append(left, Left{Device: d, Reason: err.Error()})
			continue
		}
		notes := r.Notes()
		if s.opt.QPsPerRail > 1 && r.Caps().SharedEndpoint {
			notes = append(notes, "option qps_per_rail has no effect: one endpoint serves all peers")
		}
		for _, note := range notes {
			s.log.Warn("rail", "device", Name(d), "note", note)
		}
		rs := s.newRail(r)
		if rs.keys, err = NewKeyAllocator(max(1, min(8, rs.Can.KeySize))); err == nil {
			rs.Index, err = s.core.AddRail(r.Core())
		}
		if err != nil {
			r.Close()
			return errcode.RailNotMade.Errorf("rail %s: %w", d.Name, err)
		}
		s.List = append(s.List, rs)
	}
	s.logRails(left)
	s.findNodes()
	if len(s.List) == 0 {
		if last == nil {
			last = fmt.Errorf("%w: %s", provider.ErrNoDevice, Reasons(left))
		}
		return errcode.NoRail.Errorf("no rail could be opened (options provider=%v devices=%v): %w", s.opt.Provider, s.opt.Devices, last)
	}
	return nil
}

func (k ownKey) Close() error {
	err := k.MR.Close()
	k.keys.Free(k.key)
	return err
}

// First returns true if this message about the rail was not logged before.
func (r *Rail) First(what string) bool {
	_, logged := r.logged.LoadOrStore(what, true)
	return !logged
}
