package transfer

import (
	"errors"
	"fmt"
	"slices"

	"gorail/backend/rails"
	"gorail/backend/region"
)

// Class is what kind of memory operations go between.
type Class struct {
	LocalMem, RemoteMem int32
	LocalDev, RemoteDev uint64
}

// ErrUnreachable says that no link moves bytes between the memories of an inner transfer.
var ErrUnreachable = errors.New("no link reaches both memories")

// VRAM says that one side is a GPU's, GPUs that both are.
func (c Class) VRAM() bool { return c.LocalMem == region.VRAM || c.RemoteMem == region.VRAM }
func (c Class) GPUs() bool { return c.LocalMem == region.VRAM && c.RemoteMem == region.VRAM }

// String says what it is between, for the log.
func (c Class) String() string {
	name := func(mem int32, dev uint64) string {
		if mem == region.VRAM {
			return fmt.Sprintf("GPU %d", dev)
		}
		return "host memory"
	}
	return name(c.LocalMem, c.LocalDev) + " and " + name(c.RemoteMem, c.RemoteDev)
}

// hasAll says that the rail has all of the regions.
func hasAll(r *rails.Rail, list []*region.Region) bool {
	return !slices.ContainsFunc(list, func(g *region.Region) bool { return g.Rails.Load()&(1<<r.Index) == 0 })
}

// moves says whether a rail moves bytes between such memories, where both are registered on it: who copies GPUs' memory whole does nothing
// else with it.
func moves(r *rails.Rail, c Class, bulk bool) bool { return !c.VRAM() || r.Can.Bulk == bulk }
