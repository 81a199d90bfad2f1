package engine

import (
	"math"
	"slices"
	"unsafe"

	"gorail/backend/core"
	"gorail/backend/plan"
	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/wire"
)

// The operations of a transfer.
const (
	opRead  = core.Read
	opWrite = core.Write
)

// regionSet collects the regions that a list names, in order of first use.
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

// resolver turns descriptors into pieces of a plan. The region table is locked for reading while it works.
type resolver struct {
	e             *Engine
	local, remote []Desc
	peer          *remote
	held          bool                      // the regions are another transfer's, which keeps them
	self          map[uint64]*region.Region // loopback: our region id -> the session's region

	locals, remotes  regionSet
	sliced           map[uint64]*region.Region // those registered in slices, by id
	lastL, lastR     *region.Region
	lastLID, lastRID uint64
}

// check validates pair i and notes its regions.
func (v *resolver) check(i int) error {
	l, r := &v.local[i], &v.remote[i]
	if l.Len != r.Len {
		return status.Errorf(status.ErrInvalidParam, "descriptor %d: %d bytes here, %d at the peer", i, l.Len, r.Len)
	}
	if id := l.region(); v.lastL == nil || id != v.lastLID {
		g := v.e.regions.Regions.At(id)
		if g == nil || g.Peer != nil || g.Closed.Load() && !v.held {
			return status.Errorf(status.ErrNotFound, "descriptor %d: its local memory %#x+%d is not registered", i, l.Addr, l.Len)
		}
		if g.Refused != nil {
			return status.Errorf(status.ErrBackend, "descriptor %d: its local memory could not be registered: %w", i, g.Refused)
		}
		v.lastL, v.lastLID = g, id
		v.note(&v.locals, g)
	}
	if id := r.region(); v.lastR == nil || id != v.lastRID {
		g, err := v.remoteRegion(id)
		if err != nil {
			return status.Errorf(status.ErrNotFound, "descriptor %d: %w", i, err)
		}
		v.lastR, v.lastRID = g, id
		v.note(&v.remotes, g)
	}
	if !v.lastL.Contains(l.Addr, l.Len) {
		return status.Errorf(status.ErrInvalidParam, "descriptor %d: local %#x+%d is not inside its region %#x+%d", i, l.Addr, l.Len, v.lastL.Addr, v.lastL.Len)
	}
	if !v.lastR.Contains(r.Addr, r.Len) {
		return status.Errorf(status.ErrInvalidParam, "descriptor %d: remote %#x+%d is not inside its region %#x+%d", i, r.Addr, r.Len, v.lastR.Addr, v.lastR.Len)
	}
	return nil
}

func (v *resolver) remoteRegion(id uint64) (*region.Region, error) {
	if g := v.self[id]; g != nil {
		return g, nil
	}
	g := v.e.regions.Regions.At(id)
	if g == nil || g.Closed.Load() && !v.held {
		return nil, status.Errorf(status.ErrNotFound, "its remote metadata is not loaded")
	}
	if g.Peer != v.peer {
		return nil, status.Errorf(status.ErrNotFound, "its remote metadata is not of agent %q", v.peer.name)
	}
	return g, nil
}

// pieces gives pairs of a checked list.
func (v *resolver) pieces(first int, dst []plan.Piece) {
	local, remote := v.local[first:first+len(dst)], v.remote[first:first+len(dst)]
	for i := range dst {
		l, r := &local[i], &remote[i]
		rid := r.region()
		if v.self != nil {
			rid = v.self[rid].ID
		}
		dst[i] = plan.Piece{Local: l.Addr, Remote: r.Addr, Len: l.Len, LRegion: region.Index(l.region()), RRegion: region.Index(rid)}
	}
}

// Prep validates and plans a transfer. One crossing to C at any size. Implements prepXfer.
func (e *Engine) Prep(op int, local, remoteList []Desc, peer string) (uint64, unsafe.Pointer, error) {
	if err := e.usable(); err != nil {
		return 0, nil, err
	}
	if len(local) != len(remoteList) || len(local) == 0 {
		return 0, nil, status.Errorf(status.ErrInvalidParam, "prepare: %d local and %d remote descriptors: the lists must be equally long and not empty", len(local), len(remoteList))
	}
	if op != opRead && op != opWrite {
		return 0, nil, status.Errorf(status.ErrInvalidParam, "prepare: unknown operation %d", op)
	}
	r := e.remote(peer)
	if r == nil {
		return 0, nil, status.Errorf(status.ErrNotFound, "prepare: no connection info of agent %q is loaded", peer)
	}
	v := &resolver{e: e, local: local, remote: remoteList, peer: r}
	if r.self {
		if err := v.loopback(); err != nil {
			return 0, nil, err
		}
	}
	t := &transfer{e: e, remote: r, op: op}
	if err := v.plan(t); err != nil {
		return 0, nil, err
	}
	return t.rec.Handle().Uint64(), t.x.Pointer(), nil
}

// loopback maps the agent's own metadata, which names our local regions, to regions of the session with ourselves.
func (v *resolver) loopback() error {
	v.self = map[uint64]*region.Region{}
	for i := range v.remote {
		id := v.remote[i].region()
		if _, ok := v.self[id]; ok {
			continue
		}
		g := v.e.regions.Regions.Get(id)
		if g == nil || g.Closed.Load() {
			return status.Errorf(status.ErrNotFound, "descriptor %d: its memory is not registered", i)
		}
		if g.Peer == nil {
			own, err := v.peer.loadSelf(g.Range)
			if err != nil {
				return err
			}
			g = own
		}
		v.self[id] = g
	}
	return nil
}

// plan checks, pins and lays out the transfer, and enters it.
func (v *resolver) plan(t *transfer) error {
	e := v.e
	var pinned []*region.Region
	done := e.regions.Regions.View()
	err := func() error {
		for i := range v.local {
			if err := v.check(i); err != nil {
				return err
			}
		}
		for _, g := range append(slices.Clone(v.locals.list), v.remotes.list...) {
			if !g.Pin() {
				return status.Errorf(status.ErrNotFound, "prepare: memory %#x+%d was deregistered or unloaded meanwhile", g.Addr, g.Len)
			}
			pinned = append(pinned, g)
		}
		return nil
	}()
	done()
	if err != nil {
		for _, g := range pinned {
			e.regions.Regions.Unpin(g)
		}
		return err
	}
	t.locals, t.remotes = v.locals.list, v.remotes.list
	if err := v.layout(t); err != nil {
		for _, g := range pinned {
			e.regions.Regions.Unpin(g)
		}
		return err
	}
	return nil
}

func (v *resolver) layout(t *transfer) error {
	e := v.e
	most, whole := v.peer.sizes()
	cfg := plan.Config{Links: len(v.peer.lanes), ChunkMin: max(e.opt.ChunkMin, min(whole, e.opt.ChunkMax)), ChunkMax: e.opt.ChunkMax, MaxMsg: most}
	if err := v.classify(t); err != nil {
		return err
	}
	if t.bulk || t.staged { // GPUs share the work among themselves; rings have slots
		cfg = plan.Config{Links: 1, ChunkMin: math.MaxInt64, ChunkMax: math.MaxInt64}
	}
	n, source := len(v.local), plan.Source(v.pieces)
	if v.sliced != nil {
		s := &slicer{v: v}
		n, source = s.count(), s.pieces
	}
	lay, err := cfg.Count(n, source)
	if err != nil {
		return status.Errorf(status.ErrInvalidParam, "prepare: %w", err)
	}
	rec, err := e.xfers.Alloc(t)
	if err != nil {
		return status.Errorf(status.ErrBackend, "prepare: %w", err)
	}
	x, err := e.core.NewXfer(rec.Handle().Uint64(), t.op, uint64(lay.Ops))
	if err != nil {
		e.xfers.Free(rec)
		return status.Errorf(status.ErrBackend, "prepare: no memory for %d operations: %w", lay.Ops, err)
	}
	if lay.Ops > 0 {
		if err := cfg.Fill(plan.At(x.Ops()), n, source); err != nil {
			e.core.FreeXfer(x)
			e.xfers.Free(rec)
			return status.Errorf(status.ErrInvalidParam, "prepare: %w", err)
		}
	}
	if t.bulk && lay.Ops > 0 {
		if err := e.bulk(x, v.peer, v.locals.list, v.remotes.list); err != nil {
			e.core.FreeXfer(x)
			e.xfers.Free(rec)
			return err
		}
	}
	x.SetBytes(lay.Bytes)
	t.rec, t.x, t.bytes = rec, x, lay.Bytes
	return nil
}

// sizes are the largest work request of the rails to this peer, and the largest that none of them wants cut.
func (r *remote) sizes() (most, whole uint64) {
	for i, p := range r.pairs {
		c := r.e.rails[p.Own].Can
		if i == 0 || c.MaxMsg < most {
			most = c.MaxMsg
		}
		if i == 0 || c.Whole < whole {
			whole = c.Whole
		}
	}
	return most, whole
}

// loadSelf is load without a count: such regions live as long as the session with ourselves.
func (r *remote) loadSelf(rng wire.Range) (*region.Region, error) {
	r.mu.RLock()
	g := r.regions[rng]
	r.mu.RUnlock()
	if g != nil {
		return g, nil
	}
	return r.load(rng)
}
