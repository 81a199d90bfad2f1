package transfer

import (
	"unsafe"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/host"
	"gorail/backend/plan"
	"gorail/backend/region"
)

// resolver turns descriptors into pieces of a plan. pieces and what it calls run while the region table is locked for reading.
type resolver struct {
	tab           *Table
	local, remote List
	peer          *Peer
	held          bool                      // another transfer pins the regions
	self          map[uint64]*region.Region // loopback: our region id -> the region of the session with ourselves

	locals, remotes regionSet
	i               int    // the next pair
	off             uint64 // bytes of it that are pieces already

	x       core.Xfer
	rail    int // whose memory holds the operations, or core.Heap
	out     plan.Writer
	planErr error
}

// pieces checks all pairs and writes their pieces. Errors of the plan wait in planErr, since errors of later descriptors come
// first. Pairs takes the pairs inside the windows of pairs before. next takes all others, and finds the errors.
func (v *resolver) pieces() error {
	v.out.Ops, v.out.Many = plan.At(v.x.Ops()), core.Pairs
	if len(v.local.Descs) >= plan.Long {
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
	v.out.Ops = plan.At(v.x.Ops())
	return nil
}

// next returns the next piece: the rest of a pair, or as much of it as is in one slice of either region.
func (v *resolver) next() (plan.Op, error) {
	l, r := &v.local.Descs[v.i], &v.remote.Descs[v.i]
	if v.off == 0 {
		if err := v.check(l, r); err != nil {
			return plan.Op{}, err
		}
	}
	p := plan.Op{Local: l.Addr + v.off, Remote: r.Addr + v.off}
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
func windowOver(md unsafe.Pointer, g *region.Region, addr uint64) plan.Window {
	if g.Slices != nil {
		g = g.Slices[g.SliceOf(addr, g.Slice)]
	}
	return plan.Window{MD: md, Addr: g.Addr, Size: g.Len, Index: region.Index(g.ID)}
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
