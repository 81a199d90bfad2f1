package libfabric

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
)

// Hints are the requirements for a provider, besides FI_EP_RDM, FI_RMA and FI_MSG.
type Hints struct {
	Provider       string
	Delivery, HMEM bool   // FI_DELIVERY_COMPLETE, FI_HMEM
	Class          uint32 // 0: the provider's own choice
}

// Info is a fi_info in Go: a device and its properties.
type Info struct {
	Provider, Fabric, Domain, NIC string
	Protocol                      uint32
	BitsPerSecond                 uint64     // link speed, 0 = unknown
	Src                           netip.Addr // source address, of sockets only
	IP                            bool       // addresses are socket addresses
	PCI                           string     // "0000:3b:00.0" or ""
	Attr

	list *list // keeps c alive; nil: not listed by a library
	c    *fiInfo
}

// Attr holds the properties of a device.
type Attr struct {
	MaxMsg                 uint64 // bytes of an operation
	TxDepth, RxDepth       uint64 // of an endpoint
	Segments               uint64 // of an operation
	KeySize                uint64 // bytes; 0: unknown
	DeliveryComplete       bool   // FI_DELIVERY_COMPLETE
	SendAfterWrite         bool   // FI_ORDER_SAW
	VirtAddr, ProviderKeys bool   // FI_MR_VIRT_ADDR, FI_MR_PROV_KEY
	LocalDesc, EndpointMR  bool   // FI_MR_LOCAL, FI_MR_ENDPOINT
	HMEM                   bool   // FI_HMEM
}

// list owns one result of fi_getinfo. It lives as long as any Info of the result.
type list struct {
	lib   *Library
	first *fiInfo
}

func newList(l *Library, first *fiInfo) *list {
	own := &list{l, first}
	runtime.AddCleanup(own, func(c *fiInfo) { l.calls.freeinfo(c) }, first)
	return own
}

// List implements fi_getinfo. It returns the devices whose provider is exactly the hints' provider, in libfabric's
// order.
func (l *Library) List(h Hints) ([]*Info, error) {
	hints := l.hints(h)
	if hints == nil {
		return nil, l.Errno("", syscall.ENOMEM)
	}
	first, err := l.getinfo(0, hints)
	l.calls.freeinfo(hints)
	if err != nil {
		return nil, err
	}
	own := newList(l, first)
	var out []*Info
	for c := first; c != nil; c = c.next {
		if h.Class != 0 { // no provider copies the class from the hints; domains and endpoints use this entry
			setClass(c, h.Class)
		}
		// prov_name as a hint also returns layers over that provider ("tcp;ofi_rxm"). Those are other fabrics.
		if i := describe(c); strings.EqualFold(i.Provider, h.Provider) {
			i.list = own
			out = append(out, i)
		}
	}
	return out, nil
}

// hints returns the hints for fi_getinfo; the caller frees them. nil: out of memory.
func (l *Library) hints(h Hints) *fiInfo {
	c := l.calls.dupinfo(nil)
	if c == nil {
		return nil
	}
	c.caps = fiRMA | fiMsg
	c.mode = fiContext | fiContext2
	c.ep_attr._type = fiEpRDM
	c.domain_attr.mr_mode = fiMRLocal | fiMRVirtAddr | fiMRAllocated | fiMRProvKey | fiMREndpoint
	c.domain_attr.threading = fiThreadSafe
	setClass(c, h.Class)
	if h.Delivery {
		c.tx_attr.op_flags = fiDeliveryComplete
	}
	if h.HMEM {
		c.caps |= fiHMEM
		c.domain_attr.mr_mode |= fiMRHMEM // GPU memory is registered, like all memory
	}
	c.fabric_attr.prov_name = newText(h.Provider) // freed by fi_freeinfo
	return c
}

func setClass(c *fiInfo, class uint32) {
	c.domain_attr.tclass, c.tx_attr.tclass = cUint32(class), cUint32(class)
}

// describe copies the fields that device selection needs.
func describe(c *fiInfo) *Info {
	i := &Info{
		Provider: text(c.fabric_attr.prov_name), Fabric: text(c.fabric_attr.name), Domain: text(c.domain_attr.name),
		Protocol: uint32(c.ep_attr.protocol), Attr: attributes(c), c: c,
	}
	switch c.addr_format {
	case fiSockaddr, fiSockaddrIn, fiSockaddrIn6:
		i.IP = true
		i.Src = Addr(sourceOf(c))
	}
	if c.nic == nil {
		return i
	}
	if c.nic.device_attr != nil {
		i.NIC = text(c.nic.device_attr.name)
	}
	if c.nic.link_attr != nil {
		i.BitsPerSecond = uint64(c.nic.link_attr.speed)
	}
	if at := pciOf(c); at != nil {
		i.PCI = fmt.Sprintf("%04x:%02x:%02x.%x", at.domain_id, at.bus_id, at.device_id, at.function_id)
	}
	return i
}

func attributes(c *fiInfo) Attr {
	tx, rx, dom := c.tx_attr, c.rx_attr, c.domain_attr
	order := tx.msg_order & rx.msg_order
	mode := func(bit uint64) bool { return uint64(dom.mr_mode)&bit != 0 }
	return Attr{
		MaxMsg:  uint64(c.ep_attr.max_msg_size),
		TxDepth: uint64(tx.size), RxDepth: uint64(rx.size),
		Segments: min(uint64(tx.iov_limit), uint64(tx.rma_iov_limit)), KeySize: uint64(dom.mr_key_size),
		DeliveryComplete: tx.op_flags&fiDeliveryComplete != 0,
		SendAfterWrite:   order&fiOrderSAW != 0,
		VirtAddr:         mode(fiMRVirtAddr), ProviderKeys: mode(fiMRProvKey), LocalDesc: mode(fiMRLocal), EndpointMR: mode(fiMREndpoint),
		HMEM: c.caps&fiHMEM != 0,
	}
}

// Library returns the library that listed the device; nil: none.
func (i *Info) Library() *Library {
	if i.list == nil {
		return nil
	}
	return i.list.lib
}

// SetKey sets the authorization key of a CXI device. Open passes the key to the device.
func (i *Info) SetKey(service uint32, vni uint16) error {
	return putKey(i.c, service, vni)
}
