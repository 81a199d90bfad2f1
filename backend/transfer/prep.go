package transfer

import (
	"math"
	"slices"

	"gorail/backend/errcode"
	"gorail/backend/plan"
	"gorail/backend/region"
)

// regionSet collects the regions of a list, in order of first use.
type regionSet struct {
	list []*region.Region
	seen map[*region.Region]struct{}
}

func (s *regionSet) add(r *region.Region) {
	if n := len(s.list); n > 0 && s.list[n-1] == r {
		return
	}
	if s.seen == nil && len(s.list) < 8 {
		for _, g := range s.list {
			if g == r {
				return
			}
		}
		s.list = append(s.list, r)
		return
	}
	if s.seen == nil {
		s.seen = map[*region.Region]struct{}{}
		for _, g := range s.list {
			s.seen[g] = struct{}{}
		}
	}
	if _, ok := s.seen[r]; !ok {
		s.seen[r] = struct{}{}
		s.list = append(s.list, r)
	}
}

// resolver turns descriptors into pieces of a plan. plan locks the region table for reading while it checks the descriptors.
type resolver struct {
	tab           *Table
	local, remote List
	peer          *Peer
	held          bool                      // another transfer pins the regions
	self          map[uint64]*region.Region // loopback: our region id -> the region of the session with ourselves

	locals, remotes  regionSet
	sliced           map[uint64]*region.Region // regions that are registered in slices, by id
	lastL, lastR     *region.Region
	lastLID, lastRID uint64
}

// check validates pair i and records its regions.
func (v *resolver) check(i int) error {
	l, r := &v.local.Descs[i], &v.remote.Descs[i]
	if l.Len != r.Len {
		return errcode.ListsDiffer.Errorf("descriptor %d: %d bytes here, %d at the peer", i, l.Len, r.Len)
	}
	if id := v.local.region(i); v.lastL == nil || id != v.lastLID {
		g := v.tab.Regions.Regions.At(id)
		if g == nil || g.Peer != nil || g.Closed.Load() && !v.held {
			return errcode.LocalUnknown.Errorf("descriptor %d: local memory %#x+%d is not registered", i, l.Addr, l.Len)
		}
		if g.Refused != nil {
			return errcode.LocalRefused.Errorf("descriptor %d: its local memory could not be registered: %w", i, g.Refused)
		}
		v.lastL, v.lastLID = g, id
		v.note(&v.locals, g)
	}
	if id := v.remote.region(i); v.lastR == nil || id != v.lastRID {
		g, err := v.remoteRegion(id)
		if err != nil {
			return errcode.RemoteUnknown.Errorf("descriptor %d: %w", i, err)
		}
		v.lastR, v.lastRID = g, id
		v.note(&v.remotes, g)
	}
	if !v.lastL.Contains(l.Addr, l.Len) {
		return errcode.OutOfRegion.Errorf("descriptor %d: local %#x+%d is not inside its region %#x+%d", i, l.Addr, l.Len, v.lastL.Addr, v.lastL.Len)
	}
	if !v.lastR.Contains(r.Addr, r.Len) {
		return errcode.OutOfRegion.Errorf("descriptor %d: remote %#x+%d is not inside its region %#x+%d", i, r.Addr, r.Len, v.lastR.Addr, v.lastR.Len)
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

// pieces returns pairs of a checked list.
func (v *resolver) pieces(first int, dst []plan.Piece) {
	local, remote := v.local.Descs[first:first+len(dst)], v.remote.Descs[first:first+len(dst)]
	for i := range dst {
		l, r := &local[i], &remote[i]
		rid := v.remote.region(first + i)
		if v.self != nil {
			rid = v.self[rid].ID
		}
		dst[i] = plan.Piece{Local: l.Addr, Remote: r.Addr, Len: l.Len, LRegion: region.Index(v.local.region(first + i)), RRegion: region.Index(rid)}
	}
}

// Prep validates and plans a transfer. It allocates the C transfer in one call, for any number of operations. Implements
// prepXfer.
func (tab *Table) Prep(op int, local, remote List, p *Peer) (*Transfer, error) {
	if len(local.Descs) != len(remote.Descs) || len(local.Descs) == 0 {
		return nil, errcode.ListsDiffer.Errorf("prepare: %d local and %d remote descriptors: the lists must be equally long and not empty",
			len(local.Descs), len(remote.Descs))
	}
	if op != Read && op != Write {
		return nil, errcode.BadOperation.Errorf("prepare: unknown operation %d", op)
	}
	v := &resolver{tab: tab, local: local, remote: remote, peer: p}
	if p.Self {
		if err := v.loopback(); err != nil {
			return nil, err
		}
	}
	t := &Transfer{tab: tab, peer: p, op: op}
	if err := v.plan(t); err != nil {
		return nil, err
	}
	return t, nil
}

// loopback maps the agent's own metadata, which names our local regions, to regions of the session with ourselves.
func (v *resolver) loopback() error {
	v.self = map[uint64]*region.Region{}
	for i := range v.remote.Descs {
		id := v.remote.region(i)
		if _, ok := v.self[id]; ok {
			continue
		}
		g := v.tab.Regions.Regions.Get(id)
		if g == nil || g.Closed.Load() {
			return errcode.LocalUnknown.Errorf("descriptor %d: loopback memory is not registered", i)
		}
		if g.Peer == nil {
			own, err := v.peer.session.Load(g.Claim)
			if err != nil {
				return err
			}
			g = own
		}
		v.self[id] = g
	}
	return nil
}

// plan checks the descriptors, pins the regions, and lays out and enters the transfer.
func (v *resolver) plan(t *Transfer) error {
	tab := v.tab
	var pinned []*region.Region
	done := tab.Regions.Regions.View()
	err := func() error {
		for i := range v.local.Descs {
			if err := v.check(i); err != nil {
				return err
			}
		}
		for _, g := range append(slices.Clone(v.locals.list), v.remotes.list...) {
			if !g.Pin() {
				return errcode.LocalUnknown.Errorf("prepare: memory %#x+%d was deregistered or unloaded meanwhile", g.Addr, g.Len)
			}
			pinned = append(pinned, g)
		}
		return nil
	}()
	done()
	if err != nil {
		for _, g := range pinned {
			tab.Regions.Regions.Unpin(g)
		}
		return err
	}
	t.locals, t.remotes = v.locals.list, v.remotes.list
	if err := v.layout(t); err != nil {
		for _, g := range pinned {
			tab.Regions.Regions.Unpin(g)
		}
		return err
	}
	return nil
}

func (v *resolver) layout(t *Transfer) error {
	tab := v.tab
	most, whole := v.peer.sizes()
	cfg := plan.Config{Links: v.peer.Links, ChunkMin: max(tab.Options.ChunkMin, min(whole, tab.Options.ChunkMax)), ChunkMax: tab.Options.ChunkMax, MaxMsg: most}
	if err := v.classify(t); err != nil {
		return err
	}
	if t.bulk || t.staged { // bulk: the GPUs divide the work; staged: ring slots divide it
		cfg = plan.Config{Links: 1, ChunkMin: math.MaxInt64, ChunkMax: math.MaxInt64}
	}
	n, source := len(v.local.Descs), plan.Source(v.pieces)
	if v.sliced != nil {
		s := &slicer{v: v}
		n, source = s.count(), s.pieces
	}
	lay, err := cfg.Count(n, source)
	if err != nil {
		return errcode.PlanRefused.Errorf("prepare: %w", err)
	}
	rec, err := tab.records.Alloc(t)
	if err != nil {
		return errcode.NoTransferMemory.Errorf("prepare: %w", err)
	}
	x, err := tab.Core.NewXfer(rec.Handle().Uint64(), t.op, uint64(lay.Ops))
	if err != nil {
		_ = tab.records.Free(rec)
		return errcode.NoTransferMemory.Errorf("prepare: no memory for %d operations: %w", lay.Ops, err)
	}
	if lay.Ops > 0 {
		if err := cfg.Fill(plan.At(x.Ops()), n, source); err != nil {
			tab.Core.FreeXfer(x)
			_ = tab.records.Free(rec)
			return errcode.PlanRefused.Errorf("prepare: %w", err)
		}
	}
	if t.bulk && lay.Ops > 0 {
		if err := v.peer.bulk(x, v.locals.list, v.remotes.list); err != nil {
			tab.Core.FreeXfer(x)
			_ = tab.records.Free(rec)
			return err
		}
	}
	x.SetBytes(lay.Bytes)
	t.rec, t.x, t.bytes = rec, x, lay.Bytes
	return nil
}

// sizes returns the largest work request that all rails to this peer take, and the smallest PreferUnsplit of those rails.
func (p *Peer) sizes() (most, whole uint64) {
	for i, pair := range p.Pairs {
		c := p.tab.Rails.List[pair.Own].Can
		if i == 0 || c.MaxMsg < most {
			most = c.MaxMsg
		}
		if i == 0 || c.PreferUnsplit < whole {
			whole = c.PreferUnsplit
		}
	}
	return most, whole
}
