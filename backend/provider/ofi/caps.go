package ofi

import (
	"math"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
)

// caps is what an opened device does: for the engine, and for the core.
type caps struct {
	provider.Caps
	Ordered          bool // the receive of a SEND proves the WRITEs before it on the same endpoint
	Chained          bool // the completion of a WRITE proves the unsignaled ones before it
	DeliveryComplete bool // a completion proves placement at the target
	VirtAddr         bool // remote addresses are virtual addresses; else offsets from the region's start
	LocalDesc        bool // local buffers need registration descriptors
	EndpointMR       bool // regions are bound to endpoints
	IOVLimit         int
	TxDepth, RxDepth int
	MaxSend          uint64
}

// newCaps is for a rail that is open; pins: the device pins what is registered. cq is how many completions the queue holds.
func newCaps(c *libfabric.Rail, e *entry, q quirks, pins bool, cq uint32) caps {
	out := caps{
		Ordered:          e.SendAfterWrite,
		DeliveryComplete: e.DeliveryComplete,
		VirtAddr:         e.VirtAddr,
		Caps: provider.Caps{ProviderKeys: e.ProviderKeys, KeySize: int(e.KeySize), PinsMemory: pins, SharedEndpoint: c.Shared(),
			// Messages may be smaller than RMA (efa-direct: MTU and 1 GB); 2.x tells each size when asked.
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
	if q.perPeer {
		out.Descriptors = 3 // it listens, and has a connection in each direction; a shared endpoint has none for each peer
	}
	out.Chained = q.perPeer && out.DeliveryComplete && e.MaxWriteOrder >= out.MaxMsg && e.WriteAfterWrite
	return out
}

// facts are what the core is told. private: each peer has an endpoint.
func (c caps) facts(private bool) libfabric.Facts {
	return libfabric.Facts{DeliveryComplete: c.DeliveryComplete, Ordered: c.Ordered, Chained: c.Chained, ProviderKeys: c.ProviderKeys,
		LocalDesc: c.LocalDesc, EndpointMR: c.EndpointMR, Private: private, KeySize: c.KeySize, Segments: c.IOVLimit,
		TxDepth: c.TxDepth, RxDepth: c.RxDepth, MaxMsg: c.MaxMsg, MaxSend: uint32(min(c.MaxSend, math.MaxUint32))}
}

// limit is what the option says of the shared endpoint, or the entry's. "No limit" comes as all ones; who calculates with these has
// 63 bits.
func limit(c *libfabric.Rail, option int, entry uint64) uint64 {
	entry = min(entry, math.MaxInt64)
	if v := c.Size(option); v != 0 {
		return min(v, entry)
	}
	return entry
}

// emulation says what libfabric does by messages that the device should do: EFA's fabric `efa` does where the device has no RMA, or is told to.
func emulation(c *libfabric.Rail) []string {
	what := map[[2]bool]string{{true, false}: "READ is", {false, true}: "WRITE is", {true, true}: "READ and WRITE are"}
	if s, ok := what[[2]bool{c.Bool(libfabric.OptEmulatedRead), c.Bool(libfabric.OptEmulatedWrite)}]; ok {
		return []string{s + " emulated by libfabric with messages and copies: the device or its driver has no RDMA for it, or FI_EFA_USE_DEVICE_RDMA=0 is set"}
	}
	return nil
}
