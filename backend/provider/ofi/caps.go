package ofi

import (
	"math"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
)

// caps are the properties of an opened device, for the engine and for the core.
type caps struct {
	provider.Caps
	Ordered          bool // the receive of a SEND proves earlier WRITEs of the same endpoint
	DeliveryComplete bool // a completion proves placement at the target
	VirtAddr         bool // remote addresses are virtual addresses; else offsets from the region's start
	LocalDesc        bool // local buffers need registration descriptors
	EndpointMR       bool // regions are bound to endpoints
	IOVLimit         int
	TxDepth, RxDepth int
	MaxSend          uint64
}

// newCaps returns the properties of an open rail. pins: registration pins memory. cq is the size of the completion
// queue.
func newCaps(c *libfabric.Rail, e *entry, pins bool, cq uint32) caps {
	out := caps{
		Ordered:          e.SendAfterWrite,
		DeliveryComplete: e.DeliveryComplete,
		VirtAddr:         e.VirtAddr,
		Caps: provider.Caps{ProviderKeys: e.ProviderKeys, KeySize: int(e.KeySize), PinsMemory: pins, SharedEndpoint: c.Shared(),
			// Messages may be smaller than RMA (efa-direct: MTU and 1 GB). libfabric 2.x reports each size on request.
			MaxMsg: limit(c, libfabric.OptMaxRMA, e.MaxMsg)},
		LocalDesc:  e.LocalDesc,
		EndpointMR: e.EndpointMR,
		IOVLimit:   int(min(max(e.Segments, 1), libfabric.MaxSegments)),
		TxDepth:    int(min(e.TxDepth, uint64(cq))),
		RxDepth:    int(min(e.RxDepth, uint64(cq))),
		MaxSend:    limit(c, libfabric.OptMaxMsg, e.MaxMsg),
	}
	if out.KeySize == 0 {
		out.KeySize = 8
	}
	return out
}

// facts returns the properties for the core.
func (c caps) facts() libfabric.Facts {
	return libfabric.Facts{DeliveryComplete: c.DeliveryComplete, Ordered: c.Ordered, ProviderKeys: c.ProviderKeys,
		LocalDesc: c.LocalDesc, EndpointMR: c.EndpointMR, KeySize: c.KeySize, Segments: c.IOVLimit,
		TxDepth: c.TxDepth, RxDepth: c.RxDepth, MaxMsg: c.MaxMsg, MaxSend: uint32(min(c.MaxSend, math.MaxUint32))}
}

// limit returns the shared endpoint's value of the option, or the entry's value. "No limit" is all ones, so the result
// is capped at 63 bits for calculations.
func limit(c *libfabric.Rail, option int, entry uint64) uint64 {
	entry = min(entry, math.MaxInt64)
	if v := c.Size(option); v != 0 {
		return min(v, entry)
	}
	return entry
}

// emulation returns a note if libfabric emulates RMA with messages. EFA's fabric `efa` does that if the device has no
// RMA, or if the environment forbids device RDMA.
func emulation(c *libfabric.Rail) []string {
	what := map[[2]bool]string{{true, false}: "READ is", {false, true}: "WRITE is", {true, true}: "READ and WRITE are"}
	if s, ok := what[[2]bool{c.Bool(libfabric.OptEmulatedRead), c.Bool(libfabric.OptEmulatedWrite)}]; ok {
		return []string{s + " emulated by libfabric with messages and copies: the device or its driver has no RDMA for it, or FI_EFA_USE_DEVICE_RDMA=0 is set"}
	}
	return nil
}
