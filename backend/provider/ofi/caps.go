package ofi

import (
	"math"

	"gorail/backend/provider"
)

// caps is what an opened device does: for the engine, and for the core.
type caps struct {
	provider.Caps
	Ordered          bool // the receive of a SEND proves the WRITEs before it on the same endpoint
	Chained          bool // the completion of a WRITE proves the weak ones before it
	DeliveryComplete bool // a completion proves placement at the target
	VirtAddr         bool // remote addresses are virtual addresses; else offsets from the region's start
	LocalDesc        bool // local buffers need registration descriptors
	EndpointMR       bool // regions are bound to endpoints
	IOVLimit         int
	TxDepth, RxDepth int
	MaxSend          uint64
}

// fillCaps tells the core and the engine what an opened device does.
func (r *rail) fillCaps() {
	info := r.entry.info
	dom, tx, c := info.domain_attr, info.tx_attr, r.c
	mode := func(bit uint64) bool { return uint64(dom.mr_mode)&bit != 0 }
	order := tx.msg_order & info.rx_attr.msg_order

	r.caps = caps{
		Ordered:          order&fiOrderSAW != 0,
		DeliveryComplete: tx.op_flags&fiDeliveryComplete != 0,
		VirtAddr:         mode(fiMRVirtAddr),
		Caps: provider.Caps{ProviderKeys: mode(fiMRProvKey), KeySize: int(dom.mr_key_size), Pins: r.dev.Hardware, SharedEndpoint: c.base.shared_ep != nil,
			// Messages may be smaller than RMA (efa-direct: MTU and 1 GB); 2.x tells each size when asked.
			MaxMsg: r.limit(optMaxRMA, uint64(info.ep_attr.max_msg_size))},
		LocalDesc:  mode(fiMRLocal),
		EndpointMR: mode(fiMREndpoint),
		IOVLimit:   int(min(max(min(uint64(tx.iov_limit), uint64(tx.rma_iov_limit)), 1), maxIOV)),
		TxDepth:    int(min(uint64(tx.size), uint64(r.cqSize))),
		RxDepth:    int(min(uint64(info.rx_attr.size), uint64(r.cqSize))),
		MaxSend:    r.limit(optMaxMsg, uint64(info.ep_attr.max_msg_size)),
	}
	if r.caps.KeySize == 0 {
		r.caps.KeySize = 8
	}
	if r.quirks.perPeer {
		r.caps.Descriptors = 3 // it listens, and has a connection in each direction; a shared endpoint has none for each peer
	}
	r.caps.Chained = r.quirks.perPeer && r.caps.DeliveryComplete && uint64(info.ep_attr.max_order_waw_size) >= r.caps.MaxMsg &&
		order&fiOrderRMAWAW != 0
	r.tellCore()
}

func (r *rail) tellCore() {
	c, caps := r.c, r.caps
	c.done_flags = fiCompletion
	if caps.DeliveryComplete {
		c.done_flags |= fiDeliveryComplete
	}
	c.prov_key, c.local_desc, c.endpoint_mr = flag(caps.ProviderKeys), flag(caps.LocalDesc), flag(caps.EndpointMR)
	c.key_size = cUint64(caps.KeySize)
	c.base.iov_limit = cUint32(caps.IOVLimit)
	c.base.tx_depth, c.base.rx_depth = cUint32(caps.TxDepth), cUint32(caps.RxDepth)
	c.base.max_msg = cUint64(caps.MaxMsg)
	c.base.msg_size = cUint32(min(caps.MaxSend, math.MaxUint32))
	c.base.private_ep, c.base.ordered, c.base.chained = flag(r.quirks.perPeer), flag(caps.Ordered), flag(caps.Chained)
}

// limit is what the option says of the shared endpoint, or the entry's. "No limit" comes as all ones; who calculates with these has
// 63 bits.
func (r *rail) limit(option int, entry uint64) uint64 {
	entry = min(entry, math.MaxInt64)
	if r.c.shared != nil {
		if v := sizeOption(r.c.shared, option); v != 0 {
			return min(v, entry)
		}
	}
	return entry
}

// emulation says what libfabric does by messages that the device should do: EFA's fabric `efa` does where the device has no RMA, or is told to.
func (r *rail) emulation() []string {
	if r.c.shared == nil {
		return nil
	}
	what := map[[2]bool]string{{true, false}: "READ is", {false, true}: "WRITE is", {true, true}: "READ and WRITE are"}
	if s, ok := what[[2]bool{boolOption(r.c.shared, optEmulatedRead), boolOption(r.c.shared, optEmulatedWrite)}]; ok {
		return []string{s + " emulated by libfabric with messages and copies: the device or its driver has no RDMA for it, or FI_EFA_USE_DEVICE_RDMA=0 is set"}
	}
	return nil
}
