package transfer

import (
	"math"
	"unsafe"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/host"
	"gorail/backend/region"
)

// Prep validates and plans a transfer. It allocates the C transfer in one call, for any number of operations. Implements
// prepXfer. own are the peer's regions of our own memory, by the ids of ours that the remote list has; nil: the peer is another engine.
func (tab *Table) Prep(op int, local, remote List, p *Peer, own map[uint64]*region.Region) (*Transfer, error) {
	if len(local.Descs) != len(remote.Descs) || len(local.Descs) == 0 {
		return nil, errcode.ListsDiffer.Errorf("prepare: %d local and %d remote descriptors: the lists must be equally long and not empty",
			len(local.Descs), len(remote.Descs))
	}
	if op != Read && op != Write {
		return nil, errcode.BadOperation.Errorf("prepare: unknown operation %d", op)
	}
	tab.Regions.Settle()
	v := &resolver{tab: tab, local: local, remote: remote, peer: p, self: own}
	t := &Transfer{tab: tab, peer: p, op: op}
	if err := v.plan(t); err != nil {
		return nil, err
	}
	return t, nil
}

// plan checks the descriptors, pins the regions, and lays out and enters the transfer.
func (v *resolver) plan(t *Transfer) error {
	tab := v.tab
	rec, err := tab.records.Alloc(t)
	if err != nil {
		return errcode.NoTransferMemory.Errorf("prepare: %w", err)
	}
	n, rail := len(v.local.Descs), v.guess()
	x, err := tab.Core.NewXfer(rec.Handle().Uint64(), t.op, uint64(n), rail)
	if err != nil && rail != core.Heap {
		rail = core.Heap
		x, err = tab.Core.NewXfer(rec.Handle().Uint64(), t.op, uint64(n), rail)
	}
	if err != nil {
		_ = tab.records.Free(rec)
		return errcode.NoTransferMemory.Errorf("prepare: no memory for %d operations: %w", n, err)
	}
	v.x, v.rail = x, rail
	pinned, err := v.resolve()
	if err == nil {
		t.here.Store(&v.locals.list)
		t.remotes = v.remotes.list
		err = v.layout(t)
	}
	if err != nil {
		for _, g := range pinned {
			tab.Regions.Regions.Unpin(g)
		}
		tab.Core.FreeXfer(x)
		_ = tab.records.Free(rec)
		return err
	}
	t.rec, t.x, t.bytes = rec, x, v.out.Bytes
	return nil
}

// guess returns the rail whose memory will hold the operations, as the first pair suggests. A GPU reads the operations of a bulk
// transfer in pinned memory, and they are written there at once. layout moves them if the guess was wrong.
func (v *resolver) guess() int {
	l := v.tab.Regions.Regions.Get(v.local.Region(0))
	if l == nil || l.Mem != region.VRAM {
		return core.Heap
	}
	r := v.tab.Regions.Regions.Get(v.remote.Region(0))
	if r == nil || r.Mem != region.VRAM {
		return core.Heap
	}
	if v.plain {
		return core.Heap
	}
	return v.peer.copier([]*region.Region{l}, nil)
}

// resolve checks all pairs, merges their pieces, and pins their regions.
func (v *resolver) resolve() (pinned []*region.Region, err error) {
	defer v.tab.Regions.Regions.View()()
	if err := v.pieces(); err != nil {
		return nil, err
	}
	for _, list := range [][]*region.Region{v.locals.list, v.remotes.list} {
		for _, g := range list {
			if !g.Pin() {
				return pinned, errcode.LocalUnknown.Errorf("prepare: memory %#x+%d was deregistered or unloaded meanwhile", g.Addr, g.Len)
			}
			pinned = append(pinned, g)
		}
	}
	return pinned, nil
}

// layout decides what carries the transfer and cuts the pieces into its operations.
func (v *resolver) layout(t *Transfer) error {
	tab := v.tab
	most, whole := v.peer.sizes()
	cfg := planConfig{Links: v.peer.Links(), ChunkMin: max(tab.Options.ChunkMin, min(whole, tab.Options.ChunkMax)), ChunkMax: tab.Options.ChunkMax, MaxMsg: most}
	if err := v.classify(t); err != nil {
		return err
	}
	if v.planErr != nil {
		return errcode.PlanRefused.Errorf("prepare: %w", v.planErr)
	}
	rail := core.Heap
	if t.bulk || t.staged { // bulk: the GPUs divide the work; staged: ring slots divide it
		cfg = planConfig{Links: 1, ChunkMin: math.MaxInt64, ChunkMax: math.MaxInt64}
	}
	if t.bulk && v.out.Len > 0 {
		rail = t.copier(v.locals.list, v.remotes.list)
	}
	if !t.bulk && !t.staged {
		t.most = min(cfg.cutter().max, v.out.Bytes)
	}
	n := cfg.Count(&v.out)
	if err := v.fit(n, rail); err != nil && rail != core.Heap {
		return noPinned(err)
	} else if err != nil {
		return errcode.NoTransferMemory.Errorf("prepare: no memory for %d operations: %w", n, err)
	}
	v.out.Ops = v.out.Ops[:n]
	cfg.Cut(&v.out)
	v.x.SetPlan(n, v.out.Bytes)
	if rail == core.Heap {
		return nil
	}
	if err := v.x.Bulk(region.Indices(v.locals.list), region.Indices(v.remotes.list)); err != nil {
		return noPinned(err)
	}
	return nil
}

func noPinned(err error) error {
	return errcode.NoTransferMemory.Errorf("prepare: no pinned memory for the operations of a copy between GPUs: %w", err)
}

// fit gives the operations memory of the right kind, with room for n of them and at most twice as much as they need.
func (v *resolver) fit(n, rail int) error {
	if rail == v.rail && n <= len(v.out.Ops) && len(v.out.Ops) <= 2*n+spareOps {
		return nil
	}
	err := v.tab.Core.Resize(v.x, v.out.Len, n, rail)
	if err != nil && (rail != v.rail || n > len(v.out.Ops)) {
		return err
	}
	v.rail, v.out.Ops = rail, v.x.Ops()
	return nil
}

// spareOps is the number of unused operations that are not worth a smaller allocation: 4 KiB.
const spareOps = 128

// sizes returns the largest work request that all rails to this peer take, and the smallest PreferUnsplit of those rails.
func (p *Peer) sizes() (most, whole uint64) {
	first := true
	for _, pair := range p.Pairs() {
		c := p.tab.Rails.List[pair.Own].Can()
		if c.VRAMOnly { // it has no work requests
			continue
		}
		if first || c.MaxMsg < most {
			most = c.MaxMsg
		}
		if first || c.PreferUnsplit < whole {
			whole = c.PreferUnsplit
		}
		first = false
	}
	if first {
		most = math.MaxInt64
	}
	return most, whole
}

// resolver turns descriptors into pieces of a plan. pieces and what it calls run while the region table is locked for reading.
type resolver struct {
	tab           *Table
	local, remote List
	peer          *Peer
	held          bool                      // another transfer pins the regions
	plain         bool                      // no bulk rail is used
	self          map[uint64]*region.Region // loopback: our region id -> the region of the session with ourselves

	locals, remotes regionSet
	i               int    // the next pair
	off             uint64 // bytes of it that are pieces already

	x       core.Xfer
	rail    int // whose memory holds the operations, or core.Heap
	out     planWriter
	planErr error
}

// pieces checks all pairs and writes their pieces. Errors of the plan wait in planErr, since errors of later descriptors come
// first. Pairs takes the pairs inside the windows of pairs before. next takes all others, and finds the errors.
func (v *resolver) pieces() error {
	v.out.Ops, v.out.Many = v.x.Ops(), core.Pairs
	if len(v.local.Descs) >= LongList {
		v.out.Threads = host.Processors()
	}
	for v.i < len(v.local.Descs) {
		if v.off == 0 && v.planErr == nil && v.locals.windows.Last.MD != nil && v.remotes.windows.Last.MD != nil {
			v.i += v.out.Pairs(v.local.Descs[v.i:], v.remote.Descs[v.i:], &v.locals.windows, &v.remotes.windows)
			if v.i == len(v.local.Descs) {
				break
			}
		}
		p, err := v.next()
		if err != nil {
			return err
		}
		if v.planErr == nil {
			if err := v.room(); err != nil {
				return err
			}
			v.planErr = v.out.Add(p)
		}
	}
	return nil
}

// room makes room for a piece: slices may cut the pairs.
func (v *resolver) room() error {
	if !v.out.Full() {
		return nil
	}
	n := len(v.out.Ops)
	if err := v.tab.Core.Resize(v.x, n, 2*n, v.rail); err != nil {
		return errcode.NoTransferMemory.Errorf("prepare: no memory for %d operations: %w", 2*n, err)
	}
	v.out.Ops = v.x.Ops()
	return nil
}

// next returns the next piece: the rest of a pair, or as much of it as is in one slice of either region.
func (v *resolver) next() (core.Op, error) {
	l, r := &v.local.Descs[v.i], &v.remote.Descs[v.i]
	if v.off == 0 {
		if err := v.check(l, r); err != nil {
			return core.Op{}, err
		}
	}
	p := core.Op{Local: l.Addr + v.off, Remote: r.Addr + v.off}
	here, there := windowOver(l.MD, v.locals.last.region, p.Local), windowOver(r.MD, v.remotes.last.region, p.Remote)
	v.locals.windows.Keep(here)
	v.remotes.windows.Keep(there)
	p.LRegion, p.RRegion = here.Index, there.Index
	p.Len = min(l.Len-v.off, here.Addr+here.Size-p.Local, there.Addr+there.Size-p.Remote)
	if v.off += p.Len; v.off == l.Len {
		v.i, v.off = v.i+1, 0
	}
	return p, nil
}

// windowOver returns the window of a region around an address. The core knows only the slices of a sliced region.
func windowOver(md unsafe.Pointer, g *region.Region, addr uint64) core.Window {
	if g.Slices != nil {
		g = g.Slices[g.SliceOf(addr, g.Slice)]
	}
	return core.Window{MD: md, Addr: g.Addr, Size: g.Len, Index: region.Index(g.ID)}
}

// check validates the next pair and records its regions, which are the last ones then.
func (v *resolver) check(l, r *Desc) error {
	i := v.i
	if l.Len != r.Len {
		return errcode.ListsDiffer.Errorf("descriptor %d: %d bytes here, %d at the peer", i, l.Len, r.Len)
	}
	if id := v.local.Region(i); !v.locals.has(id) {
		g := v.tab.Regions.Regions.At(id)
		if g == nil || g.Peer != nil || g.Closed.Load() && !v.held {
			return errcode.LocalUnknown.Errorf("descriptor %d: local memory %#x+%d is not registered", i, l.Addr, l.Len)
		}
		if g.Refused != nil {
			return errcode.LocalRefused.Errorf("descriptor %d: its local memory could not be registered: %w", i, g.Refused)
		}
		v.locals.add(id, g)
	}
	if id := v.remote.Region(i); !v.remotes.has(id) {
		g, err := v.remoteRegion(id)
		if err != nil {
			return errcode.RemoteUnknown.Errorf("descriptor %d: %w", i, err)
		}
		v.remotes.add(id, g)
	}
	if g := v.locals.last.region; !g.Contains(l.Addr, l.Len) {
		return errcode.OutOfRegion.Errorf("descriptor %d: local %#x+%d is not inside its region %#x+%d", i, l.Addr, l.Len, g.Addr, g.Len)
	}
	if g := v.remotes.last.region; !g.Contains(r.Addr, r.Len) {
		return errcode.OutOfRegion.Errorf("descriptor %d: remote %#x+%d is not inside its region %#x+%d", i, r.Addr, r.Len, g.Addr, g.Len)
	}
	return nil
}

func (v *resolver) remoteRegion(id uint64) (*region.Region, error) {
	if g := v.self[id]; g != nil {
		return g, nil
	}
	g := v.tab.Regions.Regions.At(id)
	if g == nil || g.Closed.Load() && !v.held {
		return nil, errcode.RemoteUnknown.Errorf("remote metadata is not loaded")
	}
	if g.Peer != v.peer {
		return nil, errcode.RemoteUnknown.Errorf("remote metadata is not of agent %q", v.peer.Name)
	}
	return g, nil
}

// Desc is one element of a descriptor list. MD is the shim's metadata object.
type Desc = core.Desc

// MDRegion is the offset of the region id in the shim's metadata object: GR_MD_REGION. Package plugin compares both.
const MDRegion = 16

// regionOf returns the region id in the metadata object of a descriptor.
func regionOf(d *Desc) uint64 {
	if d.MD == nil {
		return 0
	}
	return *(*uint64)(unsafe.Add(d.MD, MDRegion))
}

// List is a descriptor list. The caller does not change it while a transfer is prepared.
type List struct {
	Descs   []Desc
	Regions []uint64 // the region of each descriptor; nil: the metadata object holds it
}

// Own makes a list of n empty descriptors, for inner transfers.
func Own(n int) List { return List{make([]Desc, n), make([]uint64, n)} }

// Set fills one element.
func (l List) Set(i int, region, addr, length uint64) {
	l.Descs[i], l.Regions[i] = Desc{Addr: addr, Len: length}, region
}

// Region returns the region id of element i.
func (l *List) Region(i int) uint64 {
	if l.Regions != nil {
		return l.Regions[i]
	}
	return regionOf(&l.Descs[i])
}

// regionSet collects the regions of a list, in order of first use. Of a region that is registered in slices it has the slices,
// because the core knows only those.
type regionSet struct {
	list []*region.Region

	last    known
	seen    map[uint64]*region.Region // all regions, by the ids that descriptors have; nil: only the last one so far
	windows windowCache               // where the last descriptor of a region was
}

// known is a region of the set, with the id that descriptors have: in a loopback another one than the region's.
type known struct {
	id     uint64
	region *region.Region
}

// has reports whether the set has the region of that id, and makes it the last one.
func (s *regionSet) has(id uint64) bool {
	if s.last.region != nil && s.last.id == id {
		return true
	}
	g := s.seen[id]
	if g == nil {
		return false
	}
	s.last = known{id, g}
	return true
}

// add adds a region by an id that the set does not have, and makes it the last one.
func (s *regionSet) add(id uint64, g *region.Region) {
	if id != g.ID { // loopback: several ids may have one region
		if !s.has(g.ID) {
			s.add(g.ID, g)
		}
		s.name(id, g)
		return
	}
	s.name(id, g)
	if g.Slices != nil {
		s.windows.Around = s.around
		s.list = append(s.list, g.Slices...)
	} else {
		s.list = append(s.list, g)
	}
}

// around is a plan.Around.
func (s *regionSet) around(md unsafe.Pointer, addr uint64) core.Window {
	if md == nil {
		return core.Window{}
	}
	g := s.last.region
	if id := regionOf(&Desc{MD: md}); id != s.last.id {
		g = s.seen[id]
	}
	if g == nil || !g.Contains(addr, 0) {
		return core.Window{}
	}
	return windowOver(md, g, addr)
}

// name notes the region of an id, and makes it the last one.
func (s *regionSet) name(id uint64, g *region.Region) {
	if s.last.region != nil && s.seen == nil {
		s.seen = map[uint64]*region.Region{s.last.id: s.last.region}
		s.windows.Several()
	}
	s.last = known{id, g}
	if s.seen == nil {
		return
	}
	if s.seen[id] = g; len(s.seen) == knownWindows {
		s.windows.Around = s.around
	}
}
