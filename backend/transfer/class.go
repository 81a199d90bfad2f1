package transfer

import (
	"errors"
	"fmt"
	"slices"

	"gorail/backend/rails"
	"gorail/backend/region"
)

// Class is the type of local and remote memory of a group of operations.
type Class struct {
	LocalMem, RemoteMem int32
	LocalDev, RemoteDev uint64
}

// ErrUnreachable means that no link can move bytes between the memories of an inner transfer.
var ErrUnreachable = errors.New("no link reaches both memories")

// VRAM reports whether a side is GPU memory. GPUs reports whether both sides are.
func (c Class) VRAM() bool { return c.LocalMem == region.VRAM || c.RemoteMem == region.VRAM }
func (c Class) GPUs() bool { return c.LocalMem == region.VRAM && c.RemoteMem == region.VRAM }

// String names both sides for the log.
func (c Class) String() string {
	name := func(mem int32, dev uint64) string {
		if mem == region.VRAM {
			return fmt.Sprintf("GPU %d", dev)
		}
		return "host memory"
	}
	return name(c.LocalMem, c.LocalDev) + " and " + name(c.RemoteMem, c.RemoteDev)
}

// hasAll reports whether all regions are registered on the rail.
func hasAll(r *rails.Rail, list []*region.Region) bool {
	return !slices.ContainsFunc(list, func(g *region.Region) bool { return g.Rails.Load()&(1<<r.Index) == 0 })
}

// moves reports whether a rail can move bytes between these memories if both are registered on the rail. A bulk rail carries
// GPU memory only as bulk transfers.
func moves(r *rails.Rail, c Class, bulk bool) bool { return !c.VRAM() || r.Can.Bulk == bulk }
