package rails

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
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
	"gorail/backend/wire"
)

// Set holds the rails of an engine: the open rails, and the rails that wait for their device. List does not change after
// Open.
type Set struct {
	opt  option.Options
	log  *slog.Logger
	prov provider.Provider
	core *core.Core
	Nets func() []topo.Interface
	Sys  fs.FS // /sys
	List []*Rail

	Slots   int              // key slots of a region in the core, from Plan on
	Used    func() []float64 // how much of each rail the other engines of this host use, by the order of List; nil: unknown
	Opened  func(*Rail)      // called after a rail was opened on demand; nil: nobody is told
	Version string           // GORAIL's, for the log

	Nodes func(addr, length uint64) (int, error) // topo.NodeOf; nil: the rails are not on several NUMA nodes

	plan  plan
	wide  bool
	out   func(i int) bool // on a wide machine: a device is not chosen, because it is down or unfit. By the order of the devices; nil: all are
	paths []topo.PCIPath   // of a wide machine's devices, by the order of List
	seated
	wishes
	Shares

	machine *topo.Machine
}

// seated is what an engine of a wide machine has chosen for host memory.
type seated struct {
	seat    Place         // of the process
	own     uint64        // bit mask: the first choice of home
	granted uint64        // bit mask: rails that Grant has added
	home    atomic.Uint64 // bit mask: rails of memory near to the process, and of memory whose place is unknown
	common  uint64        // bit mask: see Common
}

// wishes are rails that host memory needs to reach memory of peers.
type wishes struct {
	others atomic.Uint64 // bit mask: see Others
	wanted atomic.Uint64 // bit mask
	came   atomic.Uint64 // bit mask: devices that have come up since the engine was made. See Came
	Wishes chan struct{} // a token: there are some
}

// plan are the devices that Open opens, those that join late, and those that are left out.
type plan struct {
	now, late []provider.Device
	left      []Left
}

// New returns a Set without rails; Plan and Open add them. nets may be nil: the kernel's network interfaces.
func New(opt option.Options, log *slog.Logger, prov provider.Provider, nets func() []topo.Interface) *Set {
	if nets == nil {
		nets = netInterfaces
	}
	return &Set{opt: opt, log: log, prov: prov, Nets: nets, Sys: os.DirFS("/sys"), wishes: wishes{Wishes: make(chan struct{}, 1)}}
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
		s.warn(rl)
	}
}

func (s *Set) warn(rl *Rail) {
	if w, ok := rl.Inner().(provider.Reporter); ok {
		for _, line := range w.Warnings() {
			s.log.Warn(line, "rail", rl.Name())
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
			s.warn(r) // the last ones: a process may end soon after a problem
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
	can   atomic.Pointer[provider.Caps]
	late  *lateRail // the same as Rail if it was not opened with the engine; else nil
	keys  *KeyAllocator
	cache [option.PeersBoth + 1]*Cache[provider.MR] // by the access of peers: one key gives one access

	Fences, Stalls atomic.Uint64 // of all links on the rail
	logged         sync.Map      // the messages that were logged once: see First
	lost           atomic.Pointer[error]
	Down           atomic.Bool // its device has said that it went down
	Away           atomic.Bool // its interface has not its address: it gets another one soon, or is lost
}

// Joins returns true if the rail's device was down when the engine was made, and the rail is opened later.
func (r *Rail) Joins() bool { return r.late != nil && r.late.wake != nil }

// Can is what the rail can. Before its device is open, that is what another device of its fabric can.
func (r *Rail) Can() *provider.Caps {
	if c := r.can.Load(); c != nil {
		return c
	}
	return &provider.Caps{}
}

// SetCan sets what the rail can.
func (r *Rail) SetCan(c provider.Caps) *Rail {
	r.can.Store(&c)
	return r
}

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
	rs := (&Rail{Rail: r}).SetCan(r.Caps())
	sharing := Around
	switch {
	case rs.Can().OwnKeys: // tcp: 0.5 us less for a registration and its end
		sharing = Alone
	case !s.opt.SharedKeys:
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
	if err := g.r.Need(); err != nil { // its own limits are known then
		return nil, fmt.Errorf("%w: %s: %w", provider.ErrRegister, g.r.Name(), err)
	}
	if most := g.r.Can().MaxMR; most > 0 && length > most {
		return nil, fmt.Errorf("%w: %s: %w of %d bytes: set option mr_max=%d to use the device for larger memory", provider.ErrRegister, g.r.Name(), ErrTooLarge, most, most)
	}
	if g.r.Can().ProviderKeys {
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

// wideSlots is enough for the keys of a process with one GPU: two rails of all host memory, eight of each of two nodes, four of the GPU.
const wideSlots = 24

// Plan chooses the devices. Slots is known from then on.
func (s *Set) Plan(found []provider.Device, m *topo.Machine) {
	s.plan.now, s.plan.late, s.plan.left = s.Choose(found, m)
	s.Slots = s.opt.Slots()
	switch {
	case s.wide:
		s.Slots = wire.MaxRails
	case slices.ContainsFunc(s.plan.now, func(d provider.Device) bool { return d.Hardware }): // a peer may be wide
		s.Slots = max(s.Slots, wideSlots)
	}
}

// Open opens the chosen devices as rails of a core, and adds the late rails. It returns an error if there is no rail. Plan comes before.
func (s *Set) Open(c *core.Core, m *topo.Machine) (err error) {
	s.core = c
	left := s.plan.left
	var last error
	if s.wide {
		more := []Left(nil)
		more, last = s.openWide(s.plan.now, s.plan.late, m)
		left = append(left, more...)
	} else {
		left, last = s.openAll(left)
	}
	if errcode.Of(last) == errcode.RailNotMade {
		return last
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

// openAll opens all chosen devices. last is the last error.
func (s *Set) openAll(left []Left) (_ []Left, last error) {
	// The first shards of late rails, too, come before further shards: a peer with fewer threads has no key slots for those behind.
	for _, d := range Shards(slices.Concat(s.plan.now, s.plan.late), s.Slots) {
		if slices.ContainsFunc(s.plan.late, func(l provider.Device) bool { return l.Name == d.Name && l.Fabric == d.Fabric }) {
			if err := s.addLate(d); err != nil {
				return left, err
			}
			continue
		}
		r, err := s.prov.Open(d)
		if err != nil {
			left, last = append(left, s.notOpened(d, err)), err
			continue
		}
		if err := s.add(r); err != nil {
			return left, err
		}
	}
	return left, last
}

// notOpened logs a device that did not open.
func (s *Set) notOpened(d provider.Device, err error) Left {
	s.log.Warn("rail not used: its device did not open", "device", Name(d), "err", err, errcode.Key, errcode.RailNotUsed)
	return Left{Device: d, Reason: err.Error()}
}

// notes logs what an open rail has to say.
func (s *Set) notes(r provider.Rail) {
	notes := r.Notes()
	if s.opt.QPsPerRail > 1 && r.Caps().SharedEndpoint {
		notes = append(notes, "option qps_per_rail has no effect: one endpoint serves all peers")
	}
	for _, note := range notes {
		s.log.Warn("rail", "device", Name(r.Device()), "note", note)
	}
}

// add adds an open rail.
func (s *Set) add(r provider.Rail) (err error) {
	s.notes(r)
	rs := s.newRail(r)
	if rs.keys, err = NewKeyAllocator(max(1, min(8, rs.Can().KeySize))); err == nil {
		rs.Index, err = s.core.AddRail(r.Core())
	}
	if err != nil {
		r.Close()
		return errcode.RailNotMade.Errorf("rail %s: %w", Name(r.Device()), err)
	}
	s.List = append(s.List, rs)
	return nil
}

// addReserved adds a rail that is opened later.
func (s *Set) addReserved(l *lateRail) (rs *Rail, err error) {
	rs = s.newRail(l)
	rs.late = l
	if rs.keys, err = NewKeyAllocator(max(1, min(8, l.caps.KeySize))); err == nil {
		rs.Index, err = s.core.ReserveRail()
	}
	if err != nil {
		return nil, errcode.RailNotMade.Errorf("rail %s: %w", rs.Name(), err)
	}
	s.List = append(s.List, rs)
	return rs, nil
}

// errUnfit is the error of a device that cannot stand beside the others of its fabric.
var errUnfit = errors.New("its device is of another kind than those that were opened first")

// ErrTooLarge is the error of memory that is larger than a device registers at once.
var ErrTooLarge = errors.New("the memory is larger than the device's limit")

// other is how a device differs from one of its fabric by more than its limits; "": it does not. Sessions and plans of transfers depend on these.
func other(a, b provider.Caps) string {
	switch {
	case a.SharedEndpoint != b.SharedEndpoint:
		return fmt.Sprintf("one endpoint serves all peers: %t, beside %t", a.SharedEndpoint, b.SharedEndpoint)
	case a.Bulk != b.Bulk:
		return fmt.Sprintf("copies memory of GPUs by itself: %t, beside %t", a.Bulk, b.Bulk)
	case (a.Bounces > 0) != (b.Bounces > 0):
		return fmt.Sprintf("has bounce buffers for memory of GPUs: %t, beside %t", a.Bounces > 0, b.Bounces > 0)
	}
	return ""
}

// install makes an opened device that of a reserved rail, with its own limits.
func (s *Set) install(r *Rail, opened provider.Rail) error {
	caps := opened.Caps()
	err := error(nil)
	if how := other(caps, *r.Can()); how != "" {
		err = fmt.Errorf("rail %s: %w: %s; name devices of one kind by option devices", r.Name(), errUnfit, how)
	} else if keys, failed := NewKeyAllocator(max(1, min(8, caps.KeySize))); failed != nil {
		err = fmt.Errorf("rail %s: %w", r.Name(), failed)
	} else if err = s.core.SetRail(r.Index, opened.Core()); err == nil {
		r.keys = keys
		r.SetCan(caps)
		r.late.rail.Store(&opened) // later registrations include this rail from here on
		return nil
	} else {
		err = fmt.Errorf("rail %s: %w", r.Name(), err)
	}
	_ = opened.Close()
	return err
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
