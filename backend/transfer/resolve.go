package transfer

import (
	"unsafe"

	"gorail/backend/core"
	"gorail/backend/errcode"
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
	l, r            window // where the last piece was

	x       core.Xfer
	rail    int // whose memory holds the operations, or core.Heap
	out     plan.Writer
	planErr error
}

// window is the part of a region that a piece may be in: the region, or one of its slices. The core knows only the slices of a
// sliced region.
type window struct {
	md         unsafe.Pointer // the metadata object of the region; nil: unknown, and nothing is in the window
	addr, size uint64
	index      uint32 // in the core's table
}

// pieces checks all pairs and writes their pieces. Errors of the plan wait in planErr, since errors of later descriptors come
// first.
func (v *resolver) pieces() error {
	v.out.Ops = plan.At(v.x.Ops())
	for v.i < len(v.local.Descs) {
		room := v.out.Room()
		if len(room) == 0 { // slices cut the pairs
			n := len(v.out.Ops)
			if err := v.tab.Core.Resize(v.x, n, 2*n, v.rail); err != nil {
				return errcode.NoTransferMemory.Errorf("prepare: no memory for %d operations: %w", 2*n, err)
			}
			v.out.Ops = plan.At(v.x.Ops())
			continue
		}
		n, err := v.fill(room)
		if err != nil {
			return err
		}
		if v.planErr != nil {
			continue
		}
		v.planErr = v.out.Merge(n)
	}
	return nil
}

// fill checks the next pairs and writes their pieces, as many as there is room for. The loop takes pairs inside the windows of
// the pair before. next takes all others, and finds the errors.
func (v *resolver) fill(room []plan.Op) (int, error) {
	n := 0
	for n < len(room) && v.i < len(v.local.Descs) {
		local := v.local.Descs[v.i:]
		local = local[:min(len(local), len(room)-n)]
		remote := v.remote.Descs[v.i:][:len(local)]
		dst := room[n:][:len(local)]
		k := 0
		if v.off == 0 && v.l.md != nil && v.r.md != nil {
			k = v.within(local, remote, dst)
		}
		v.i, n = v.i+k, n+k
		if k == len(local) {
			continue
		}
		p, err := v.next()
		if err != nil {
			return 0, err
		}
		room[n] = p
		n++
	}
	return n, nil
}

// within writes the pieces of pairs, up to the first one that is not inside known windows. It returns their number. The slices
// have the same length. The loop assigns single fields: Go builds a whole Op on the stack and copies it in larger words, which
// wait for the smaller ones and take 5 of 7 ns.
func (v *resolver) within(local, remote []Desc, dst []plan.Op) int {
	l, r := v.l, v.r
	remote, dst = remote[:len(local)], dst[:len(local)]
	for i := range local {
		a, b, to := &local[i], &remote[i], &dst[i]
		length := a.Len
		if b.Len != length {
			return i
		}
		if a.MD != l.md && !v.locals.window(a.MD, &l) || b.MD != r.md && !v.remotes.window(b.MD, &r) {
			return i
		}
		// A window does not run past the end of the address space, so that an address before it is far behind it.
		if at := a.Addr - l.addr; at > l.size || length > l.size-at {
			return i
		}
		if at := b.Addr - r.addr; at > r.size || length > r.size-at {
			return i
		}
		to.Local, to.Remote, to.Len, to.LRegion, to.RRegion = a.Addr, b.Addr, length, l.index, r.index
	}
	return len(local)
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
	here, there := v.l.over(l.MD, v.locals.last.region, p.Local), v.r.over(r.MD, v.remotes.last.region, p.Remote)
	v.locals.keep(&v.l)
	v.remotes.keep(&v.r)
	p.LRegion, p.RRegion = v.l.index, v.r.index
	p.Len = min(l.Len-v.off, here, there)
	if v.off += p.Len; v.off == l.Len {
		v.i, v.off = v.i+1, 0
	}
	return p, nil
}

// over moves the window to an address of a region, and returns the bytes from there to its end.
func (w *window) over(md unsafe.Pointer, g *region.Region, addr uint64) uint64 {
	if g.Slices != nil {
		g = g.Slices[g.SliceOf(addr, g.Slice)]
	}
	*w = window{md, g.Addr, g.Len, region.Index(g.ID)}
	return g.Addr + g.Len - addr
}

// check validates the next pair and records its regions, which are the last ones then.
func (v *resolver) check(l, r *Desc) error {
	i := v.i
	if l.Len != r.Len {
		return errcode.ListsDiffer.Errorf("descriptor %d: %d bytes here, %d at the peer", i, l.Len, r.Len)
	}
	if id := v.local.region(i); !v.locals.has(id) {
		g := v.tab.Regions.Regions.At(id)
		if g == nil || g.Peer != nil || g.Closed.Load() && !v.held {
			return errcode.LocalUnknown.Errorf("descriptor %d: local memory %#x+%d is not registered", i, l.Addr, l.Len)
		}
		if g.Refused != nil {
			return errcode.LocalRefused.Errorf("descriptor %d: its local memory could not be registered: %w", i, g.Refused)
		}
		v.locals.add(id, g)
	}
	if id := v.remote.region(i); !v.remotes.has(id) {
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
