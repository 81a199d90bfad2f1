package libfabric

import (
	"fmt"
	"syscall"
	"unsafe"
)

// Rail is an opened device: libfabric's objects, and the C rail that the core posts to and polls. The C rail's lock
// guards both. Methods marked "under Hold" need that lock. Once the core may use the rail, all other methods take the
// lock in C themselves.
type Rail struct {
	lib  *Library
	info *Info // keeps the fi_info of the objects alive
	c    *coreRail

	noP2P error
}

// NewRail returns a rail without objects.
func NewRail(i *Info) (*Rail, error) {
	r := &Rail{lib: i.Library(), info: i, c: newCoreRail()}
	if r.c == nil {
		return nil, r.lib.Errno("calloc", syscall.ENOMEM)
	}
	return r, nil
}

// Free frees everything except libfabric's objects.
func (r *Rail) Free() { freeCoreRail(r.c) }

// Core returns the gr_rail.
func (r *Rail) Core() unsafe.Pointer { return unsafe.Pointer(r.c) }

// Library returns the library that opened the rail.
func (r *Rail) Library() *Library { return r.lib }

// OpenDomain implements fi_fabric, fi_domain and fi_av_open. After a failure, opened objects stay open.
func (r *Rail) OpenDomain() error {
	var rc int
	if r.c.fabric, rc = r.lib.calls.fabric(r.info.c); rc < 0 {
		return r.lib.check("fi_fabric", rc)
	}
	if r.c.domain, rc = openDomain(r.c.fabric, r.info.c); rc < 0 {
		return r.lib.check("fi_domain", rc)
	}
	r.c.av, rc = openAV(r.c.domain)
	return r.lib.check("fi_av_open", rc)
}

// OpenCQ implements fi_cq_open. With wait, the queue has a descriptor to wait on.
func (r *Rail) OpenCQ(size uint32, wait bool) error {
	object := fiWait(fiWaitNone)
	if wait {
		object = fiWaitFD
	}
	cq, rc := openCQ(r.c.domain, size, object)
	if rc < 0 {
		return r.lib.check("fi_cq_open", rc)
	}
	r.c.cq = cq
	if wait {
		r.c.base.wait_fd = cInt(waitFD(cq))
	}
	return nil
}

// Facts are the properties that the core and the C files rely on.
type Facts struct {
	DeliveryComplete bool // a completion proves placement at the target
	Ordered          bool // the receive of a SEND proves earlier WRITEs of the same endpoint
	ProviderKeys     bool
	LocalDesc        bool // local buffers need registration descriptors
	EndpointMR       bool // regions are bound to endpoints
	KeySize          int
	Segments         int
	TxDepth, RxDepth int
	MaxMsg           uint64
	MaxSend          uint32
}

// SetFacts sets the properties of a rail that is being opened.
func (r *Rail) SetFacts(f Facts) {
	c := r.c
	c.done_flags = fiCompletion
	if f.DeliveryComplete {
		c.done_flags |= fiDeliveryComplete
	}
	c.prov_key, c.local_desc, c.endpoint_mr = flag(f.ProviderKeys), flag(f.LocalDesc), flag(f.EndpointMR)
	c.key_size = cUint64(f.KeySize)
	c.base.limit.iov_limit = cUint32(f.Segments)
	c.base.limit.tx_depth, c.base.limit.rx_depth = cUint32(f.TxDepth), cUint32(f.RxDepth)
	c.base.limit.max_msg = cUint64(f.MaxMsg)
	c.base.limit.msg_size = cUint32(f.MaxSend)
	c.base.is.ordered = flag(f.Ordered)
}

// Hold runs f with the rail's lock. During f nothing posts or polls, and libfabric opens and closes no descriptor of
// the rail. The core waits for f, so f must be short and must not wait for another goroutine.
func (r *Rail) Hold(f func()) { hold(r.c, f) }

// Close closes libfabric's objects and returns the first error. While endpoints or regions are open, it fails with
// EBUSY, changes nothing, and done is false.
func (r *Rail) Close(endpoints int) (done bool, err error) {
	done, regions, rc := closeRail(r.c, endpoints)
	if !done {
		return false, r.lib.Errno(fmt.Sprintf("close with %d endpoints and %d regions open", endpoints, regions), syscall.EBUSY)
	}
	return true, r.lib.check("fi_close", rc)
}

// ---- the shared endpoint ----

// Shared reports whether one endpoint serves all peers.
func (r *Rail) Shared() bool { return r.c.shared != nil }

// Size implements fi_getopt of the shared endpoint; 0 if there is none, or if the library does not know the option.
func (r *Rail) Size(option int) uint64 {
	if r.c.shared == nil {
		return 0
	}
	return sizeOption(r.c.shared, option)
}

// Bool implements fi_getopt of the shared endpoint; false as for Size.
func (r *Rail) Bool(option int) bool { return r.c.shared != nil && boolOption(r.c.shared, option) }

// ---- addresses ----

// Place is a peer's index in the address vector.
type Place fiAddr

// Insert implements fi_av_insert.
func (r *Rail) Insert(addr []byte) (Place, error) {
	at, rc := insert(r.c, addr)
	return Place(at), r.lib.check("fi_av_insert", rc)
}

// Remove implements fi_av_remove. Under Hold.
func (r *Rail) Remove(p Place) { remove(r.c.av, fiAddr(p)) }
