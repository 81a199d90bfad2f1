package peer

import "gorail/backend/wire"

// keysWeight returns the weight of a keys request towards maxPendingKeys, and 0 for other frames.
func keysWeight(f wire.Frame) int {
	if f, ok := f.(*wire.KeysReq); ok {
		return len(f.Ranges) + 1
	}
	return 0
}

// frameCost returns about the memory that a frame takes while it waits, in bytes.
func frameCost(f wire.Frame) int {
	const base, perRange, perEntry, perRail, perLink = 64, 48, 48, 24, 64
	switch f := f.(type) {
	case *wire.KeysReq:
		return base + perRange*len(f.Ranges)
	case *wire.Keys:
		n := base + perEntry*len(f.Entries)
		for _, e := range f.Entries {
			n += perRail * len(e.Rails)
		}
		return n
	case *wire.Revoke:
		return base + 8*len(f.Regions)
	case *wire.Fence:
		return base + len(f.Addr)
	case *wire.Fenced:
		return base + len(f.Addr) + 8*len(f.Have)
	case *wire.Ring:
		return 2*base + len(f.Text)
	case *wire.Copied:
		return base + len(f.Text)
	case *wire.PackedCopied:
		return base + len(f.Copied.Text)
	case *wire.Snapshot:
		return 2*base + perLink*len(f.Links)
	case *wire.Bye:
		return base + len(f.Text)
	}
	return base
}
