package ofi

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"

	"gorail/backend/provider/ofi/sockets"
)

// want is what is asked of a provider beyond FI_EP_RDM, FI_RMA and FI_MSG.
type want struct{ delivery, hmem bool }

// asked is what the operator asks for; 0 is the provider's own choice.
type asked struct {
	class            uint32 // FI_TC_*
	txDepth, rxDepth int
	threadDomain     bool
}

// hints are for fi_getinfo, and the caller's to free. nil without memory.
func (l *library) hints(fabric string, w want, a asked) *fiInfo {
	h := l.dupinfo(nil)
	if h == nil {
		return nil
	}
	h.caps = fiRMA | fiMsg
	h.mode = fiContext | fiContext2
	h.ep_attr._type = fiEpRDM
	h.domain_attr.mr_mode = fiMRLocal | fiMRVirtAddr | fiMRAllocated | fiMRProvKey | fiMREndpoint
	h.domain_attr.threading = fiThreadSafe
	if a.threadDomain {
		h.domain_attr.threading = fiThreadDomain
	}
	setClass(h, a.class)
	h.tx_attr.size = cSize(a.txDepth)
	h.rx_attr.size = cSize(a.rxDepth)
	if w.delivery {
		h.tx_attr.op_flags = fiDeliveryComplete
	}
	if w.hmem {
		h.caps |= fiHMEM
		h.domain_attr.mr_mode |= fiMRHMEM // as all memory is: registered
	}
	h.fabric_attr.prov_name = newText(fabric) // freed by fi_freeinfo
	return h
}

func setClass(info *fiInfo, class uint32) {
	info.domain_attr.tclass, info.tx_attr.tclass = cUint32(class), cUint32(class)
}

// list implements fi_getinfo: the entries whose provider is exactly fabric. They keep what libfabric returned.
func (a asker) list(fabric string, w want) ([]*entry, error) {
	hints := a.hints(fabric, w, a.asked)
	if hints == nil {
		return nil, a.errno("", syscall.ENOMEM)
	}
	first, err := a.getinfo(0, hints)
	a.freeinfo(hints)
	if err != nil {
		return nil, err
	}
	// The list lives while an entry, or a rail opened from one, does.
	h := &handle{lib: a.library, first: first}
	runtime.AddCleanup(h, freeInfo, freeArg{a.library, first})
	var out []*entry
	for p := first; p != nil; p = p.next {
		if a.asked.class != 0 { // no provider takes it over from the hints; domains and endpoints are opened with what is in here
			setClass(p, a.asked.class)
		}
		e := describe(p)
		e.handle, e.unasked = h, a.unasked
		if k := a.tune.key(e.domain); k != nil && e.provider == "cxi" {
			if err := a.setKey(p, k); err != nil {
				return nil, err
			}
		}
		// prov_name as a hint also brings layers over that provider ("net;ofi_rxm"): those are other fabrics.
		if strings.EqualFold(e.provider, fabric) {
			out = append(out, e)
		}
	}
	return out, nil
}

// describe copies what is needed to choose.
func describe(p *fiInfo) *entry {
	e := &entry{
		provider: text(p.fabric_attr.prov_name), fabric: text(p.fabric_attr.name), domain: text(p.domain_attr.name),
		protocol: uint32(p.ep_attr.protocol), maxMsg: uint64(p.ep_attr.max_msg_size),
		txDepth: uint64(p.tx_attr.size), rxDepth: uint64(p.rx_attr.size),
		info: p,
	}
	switch p.addr_format {
	case fiSockaddr, fiSockaddrIn, fiSockaddrIn6:
		e.ip = true
		e.src = sockets.Addr(sourceOf(p))
	}
	if p.nic == nil {
		return e
	}
	if p.nic.device_attr != nil {
		e.nic = text(p.nic.device_attr.name)
	}
	if p.nic.link_attr != nil {
		e.bps = uint64(p.nic.link_attr.speed)
	}
	if at := pciOf(p); at != nil {
		e.pci = fmt.Sprintf("%04x:%02x:%02x.%x", at.domain_id, at.bus_id, at.device_id, at.function_id)
	}
	return e
}

// handle owns one result of fi_getinfo.
type handle struct {
	lib   *library
	first *fiInfo
}

type freeArg struct {
	lib   *library
	first *fiInfo
}

func freeInfo(a freeArg) { a.lib.freeinfo(a.first) }
