package libfabric

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
#include <stdlib.h>
#include "ofi.h"
*/
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"

	"gorail/backend/provider/internal/clib"
)

// Calls of libfabric for set-up, one function each. Objects are in libfabric's memory. The caller holds the rail's lock
// if others may use the rail. Calls return libfabric's codes: 0, or a negative one.

type (
	fiInfo   = C.struct_fi_info
	fiFid    = C.struct_fid
	fiFabric = C.struct_fid_fabric
	fiDomain = C.struct_fid_domain
	fiAV     = C.struct_fid_av
	fiCQ     = C.struct_fid_cq
	fiEP     = C.struct_fid_ep
	fiMR     = C.struct_fid_mr
	fiAddr   = C.fi_addr_t
	fiWait   = C.enum_fi_wait_obj
	fiPCI    = C.struct_fi_pci_attr
)

// Constants of libfabric, under their names there.
const (
	fiMsg, fiRMA, fiHMEM             = C.FI_MSG, C.FI_RMA, C.FI_HMEM
	fiContext, fiContext2            = C.FI_CONTEXT, C.FI_CONTEXT2
	fiCompletion, fiDeliveryComplete = C.FI_COMPLETION, C.FI_DELIVERY_COMPLETE
	fiProvAttrOnly                   = C.FI_PROV_ATTR_ONLY
	fiEpRDM                          = C.FI_EP_RDM
	fiThreadSafe                     = C.FI_THREAD_SAFE
	fiOrderSAW                       = C.FI_ORDER_SAW
	fiWaitFD, fiWaitNone             = C.FI_WAIT_FD, C.FI_WAIT_NONE

	fiMRLocal, fiMRVirtAddr, fiMRAllocated = C.FI_MR_LOCAL, C.FI_MR_VIRT_ADDR, C.FI_MR_ALLOCATED
	fiMRProvKey, fiMREndpoint, fiMRHMEM    = C.FI_MR_PROV_KEY, C.FI_MR_ENDPOINT, C.FI_MR_HMEM

	fiSockaddr, fiSockaddrIn, fiSockaddrIn6 = C.FI_SOCKADDR, C.FI_SOCKADDR_IN, C.FI_SOCKADDR_IN6

	optCUDA, optSharedMemory = C.OFI_OPT_CUDA_API_PERMITTED, C.OFI_OPT_SHARED_MEMORY_PERMITTED
)

// Traffic classes.
const (
	ClassUnspec          = C.FI_TC_UNSPEC
	ClassBestEffort      = C.FI_TC_BEST_EFFORT
	ClassLowLatency      = C.FI_TC_LOW_LATENCY
	ClassDedicatedAccess = C.FI_TC_DEDICATED_ACCESS
	ClassBulkData        = C.FI_TC_BULK_DATA
)

// Endpoint options, for Rail.Size and Rail.Bool.
const (
	OptMaxMsg        = C.OFI_OPT_MAX_MSG_SIZE
	OptMaxRMA        = C.OFI_OPT_MAX_RMA_SIZE
	OptEmulatedRead  = C.OFI_OPT_EFA_EMULATED_READ
	OptEmulatedWrite = C.OFI_OPT_EFA_EMULATED_WRITE
)

// Version is a libfabric version: the major number in the upper half, the minor number in the lower half.
type Version uint32

func (v Version) String() string { return fmt.Sprintf("%d.%d", v>>16, v&0xffff) }

// The newest API version whose structures and semantics were reviewed, and the oldest usable one. Newer libraries are
// used with apiMax. APIDMABuf is the first version that can register a dmabuf.
const (
	apiMax    Version = 2<<16 | 6
	apiMin    Version = 1<<16 | 9
	APIDMABuf Version = C.OFI_API_DMABUF
)

// MaxAddr is the maximum length of an endpoint's address, in bytes.
const MaxAddr = 256

// calls is the table of libfabric's symbols. All other functions are reached through libfabric's objects.
type calls struct{ t *C.ofi_lib }

// newCalls returns an empty table in C memory and the symbols that fill it. The symbol versions
// belong to the fi_info of libfabric 1.9 to 1.17, whose headers we compile with. Newer libraries still have these
// versions, and convert hints to their longer structures (src/abi_1_0.c there).
func newCalls() (c calls, symbols []clib.Symbol, err error) {
	mem, err := clib.Zeroed("ofi_calls", 1, C.sizeof_ofi_lib)
	if err != nil {
		return c, nil, err
	}
	t := (*C.ofi_lib)(mem)
	return calls{t}, []clib.Symbol{
		{To: &t.getinfo, Name: "fi_getinfo", Version: "FABRIC_1.3"},
		{To: &t.freeinfo, Name: "fi_freeinfo", Version: "FABRIC_1.3"},
		{To: &t.dupinfo, Name: "fi_dupinfo", Version: "FABRIC_1.3"},
		{To: &t.fabric, Name: "fi_fabric", Version: "FABRIC_1.1"},
		{To: &t.strerror, Name: "fi_strerror", Version: "FABRIC_1.0"},
		{To: &t.version, Name: "fi_version", Version: "FABRIC_1.0"},
	}, nil
}

// free frees the table. For a table that could not be filled.
func (c calls) free() { C.free(unsafe.Pointer(c.t)) }

// errno maps a code of libfabric to an errno. libfabric's own codes become the nearest errno.
func errno(rc int) syscall.Errno { return syscall.Errno(-C.ofi_errno(C.long(rc))) }

func (c calls) version() Version { return Version(C.ofi_version(c.t)) }

func (c calls) strerror(errno int) string { return C.GoString(C.ofi_strerror(c.t, C.int(errno))) }

// getinfo implements fi_getinfo. The caller frees the list with freeinfo.
func (c calls) getinfo(api Version, flags uint64, hints *fiInfo) (list *fiInfo, rc int) {
	rc = int(C.ofi_getinfo(c.t, C.uint32_t(api), C.uint64_t(flags), hints, &list))
	return list, rc
}

func (c calls) freeinfo(list *fiInfo) {
	if list != nil {
		C.ofi_freeinfo(c.t, list)
	}
}

// dupinfo implements fi_dupinfo. For nil it returns an empty fi_info. nil: out of memory.
func (c calls) dupinfo(info *fiInfo) *fiInfo { return C.ofi_dupinfo(c.t, info) }

func (c calls) fabric(info *fiInfo) (out *fiFabric, rc int) {
	rc = int(C.ofi_fabric(c.t, info.fabric_attr, &out))
	return out, rc
}

func openDomain(f *fiFabric, info *fiInfo) (out *fiDomain, rc int) {
	rc = int(C.fi_domain(f, info, &out, nil))
	return out, rc
}

func openAV(d *fiDomain) (out *fiAV, rc int) {
	rc = int(C.ofi_av_open(d, &out))
	return out, rc
}

func openCQ(d *fiDomain, size uint32, wait fiWait) (out *fiCQ, rc int) {
	rc = int(C.ofi_cq_open(d, C.size_t(size), wait, &out))
	return out, rc
}

// waitFD implements FI_GETWAIT; -1: the queue has no descriptor.
func waitFD(cq *fiCQ) int {
	fd := C.int(-1)
	if C.ofi_cq_getwait(cq, &fd) != 0 {
		return -1
	}
	return int(fd)
}

func openEP(d *fiDomain, info *fiInfo) (out *fiEP, rc int) {
	rc = int(C.fi_endpoint(d, info, &out, nil))
	return out, rc
}

func bindAV(ep *fiEP, av *fiAV) int { return int(C.fi_ep_bind(ep, &av.fid, 0)) }
func bindCQ(ep *fiEP, cq *fiCQ) int { return int(C.fi_ep_bind(ep, &cq.fid, C.FI_SEND|C.FI_RECV)) }
func enableEP(ep *fiEP) int         { return int(C.fi_enable(ep)) }

// getname implements fi_getname.
func getname(ep *fiEP) (addr []byte, rc int) {
	var room [MaxAddr]byte
	n := C.size_t(len(room))
	if rc = int(C.fi_getname(&ep.fid, unsafe.Pointer(&room[0]), &n)); rc < 0 {
		return nil, rc
	}
	return append([]byte(nil), room[:n]...), 0
}

// setOff implements fi_setopt of false. A library that does not know the option refuses it without harm.
func setOff(ep *fiEP, option int) {
	no := C.bool(false)
	C.fi_setopt(&ep.fid, C.FI_OPT_ENDPOINT, C.int(option), unsafe.Pointer(&no), C.size_t(unsafe.Sizeof(no)))
}

// requireP2P implements fi_setopt of FI_OPT_FI_HMEM_P2P.
func requireP2P(ep *fiEP) int {
	only := C.int(C.OFI_HMEM_P2P_REQUIRED)
	return int(C.fi_setopt(&ep.fid, C.FI_OPT_ENDPOINT, C.OFI_OPT_HMEM_P2P, unsafe.Pointer(&only), C.size_t(unsafe.Sizeof(only))))
}

// boolOption implements fi_getopt; false if the library does not know the option.
func boolOption(ep *fiEP, option int) bool {
	var value C.bool
	n := C.size_t(unsafe.Sizeof(value))
	return C.fi_getopt(&ep.fid, C.FI_OPT_ENDPOINT, C.int(option), unsafe.Pointer(&value), &n) == 0 && bool(value)
}

// sizeOption implements fi_getopt; 0 if the library does not know the option.
func sizeOption(ep *fiEP, option int) uint64 {
	var value C.size_t
	n := C.size_t(unsafe.Sizeof(value))
	if C.fi_getopt(&ep.fid, C.FI_OPT_ENDPOINT, C.int(option), unsafe.Pointer(&value), &n) != 0 {
		return 0
	}
	return uint64(value)
}

// remove implements fi_av_remove.
func remove(av *fiAV, at fiAddr) { C.fi_av_remove(av, &at, 1, 0) }

// closeFid implements fi_close.
func closeFid(fid *fiFid) int { return int(C.fi_close(fid)) }

// pciOf returns nil unless the device is on a PCI bus.
func pciOf(info *fiInfo) *fiPCI { return C.ofi_pci(info) }

// sourceOf returns an entry's source address, in place.
func sourceOf(info *fiInfo) []byte {
	if info.src_addr == nil {
		return nil
	}
	return unsafe.Slice((*byte)(info.src_addr), int(info.src_addrlen))
}

// putKey stores CXI's key in an entry. fi_domain passes the key to the device, and endpoints inherit it. fi_freeinfo
// frees it.
func putKey(info *fiInfo, service uint32, vni uint16) error {
	mem, err := clib.Zeroed("ofi_cxi_key", 1, C.sizeof_ofi_cxi_key)
	if err != nil {
		return err
	}
	key := (*C.ofi_cxi_key)(mem)
	key.svc_id, key.vni = C.uint32_t(service), C.uint16_t(vni)
	C.free(unsafe.Pointer(info.domain_attr.auth_key))
	info.domain_attr.auth_key = (*C.uint8_t)(unsafe.Pointer(key))
	info.domain_attr.auth_key_size = C.sizeof_ofi_cxi_key
	return nil
}

// text returns a Go string; "" for nil. newText allocates with malloc.
func text(c *C.char) string    { return C.GoString(c) }
func newText(s string) *C.char { return C.CString(s) }

// getenv, setenv and unsetenv use the C environment, because the host process may have changed it since Go copied it.
func getenv(name string) bool {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return C.getenv(c) != nil
}

func setenv(name, value string) bool {
	c, v := C.CString(name), C.CString(value)
	defer C.free(unsafe.Pointer(c))
	defer C.free(unsafe.Pointer(v))
	return C.setenv(c, v, 1) == 0
}

func unsetenv(name string) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	C.unsetenv(c)
}
