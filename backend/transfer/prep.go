package transfer

import (
	"math"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/plan"
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
	return v.peer.copier([]*region.Region{l})
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
	cfg := plan.Config{Links: v.peer.Links(), ChunkMin: max(tab.Options.ChunkMin, min(whole, tab.Options.ChunkMax)), ChunkMax: tab.Options.ChunkMax, MaxMsg: most}
	if err := v.classify(t); err != nil {
		return err
	}
	if v.planErr != nil {
		return errcode.PlanRefused.Errorf("prepare: %w", v.planErr)
	}
	rail := core.Heap
	if t.bulk || t.staged { // bulk: the GPUs divide the work; staged: ring slots divide it
		cfg = plan.Config{Links: 1, ChunkMin: math.MaxInt64, ChunkMax: math.MaxInt64}
	}
	if t.bulk && v.out.Len > 0 {
		rail = v.peer.copier(v.locals.list)
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
	v.rail, v.out.Ops = rail, plan.At(v.x.Ops())
	return nil
}

// spareOps is the number of unused operations that are not worth a smaller allocation: 4 KiB.
const spareOps = 128

// sizes returns the largest work request that all rails to this peer take, and the smallest PreferUnsplit of those rails.
func (p *Peer) sizes() (most, whole uint64) {
	for i, pair := range p.Pairs() {
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
