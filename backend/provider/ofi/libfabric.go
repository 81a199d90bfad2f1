package ofi

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
#include <stdlib.h>
#include "ofi.h"
*/
import "C"

import (
	"syscall"
	"unsafe"

	"gorail/backend/provider/internal/clib"
)

// libfabric's calls for set-up, one each. Objects are libfabric's memory. Who calls holds the rail's lock where a rail is open (rail.hold).

type (
	fiLib    = C.ofi_lib
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

// libfabric's numbers, by their names there.
const (
	fiMsg, fiRMA, fiHMEM             = C.FI_MSG, C.FI_RMA, C.FI_HMEM
	fiContext, fiContext2            = C.FI_CONTEXT, C.FI_CONTEXT2
	fiCompletion, fiDeliveryComplete = C.FI_COMPLETION, C.FI_DELIVERY_COMPLETE
	fiProvAttrOnly                   = C.FI_PROV_ATTR_ONLY
	fiEpRDM                          = C.FI_EP_RDM
	fiThreadSafe, fiThreadDomain     = C.FI_THREAD_SAFE, C.FI_THREAD_DOMAIN
	fiOrderSAW, fiOrderRMAWAW        = C.FI_ORDER_SAW, C.FI_ORDER_RMA_WAW
	fiWaitFD, fiWaitNone             = C.FI_WAIT_FD, C.FI_WAIT_NONE

	fiMRLocal, fiMRVirtAddr, fiMRAllocated = C.FI_MR_LOCAL, C.FI_MR_VIRT_ADDR, C.FI_MR_ALLOCATED
	fiMRProvKey, fiMREndpoint, fiMRHMEM    = C.FI_MR_PROV_KEY, C.FI_MR_ENDPOINT, C.FI_MR_HMEM

	fiSockaddr, fiSockaddrIn, fiSockaddrIn6 = C.FI_SOCKADDR, C.FI_SOCKADDR_IN, C.FI_SOCKADDR_IN6

	tcUnspec, tcBestEffort, tcLowLatency = C.FI_TC_UNSPEC, C.FI_TC_BEST_EFFORT, C.FI_TC_LOW_LATENCY
	tcDedicatedAccess, tcBulkData        = C.FI_TC_DEDICATED_ACCESS, C.FI_TC_BULK_DATA

	optCUDA, optSharedMemory          = C.OFI_OPT_CUDA_API_PERMITTED, C.OFI_OPT_SHARED_MEMORY_PERMITTED
	optMaxMsg, optMaxRMA              = C.OFI_OPT_MAX_MSG_SIZE, C.OFI_OPT_MAX_RMA_SIZE
	optEmulatedRead, optEmulatedWrite = C.OFI_OPT_EFA_EMULATED_READ, C.OFI_OPT_EFA_EMULATED_WRITE

	apiDMABUF = C.OFI_API_DMABUF // the first libfabric that registers one
)

// newLib is an empty table of symbols, nil without memory, and where its members go. The versions are those that go with the fi_info of libfabric 1.9
// to 1.17, whose headers we are compiled with. A newer library still carries them and converts hints to its own, longer
// structures (src/abi_1_0.c there).
func newLib() (*fiLib, []clib.Symbol) {
	lib := (*fiLib)(C.calloc(1, C.sizeof_ofi_lib)) // C memory: calls get it
	if lib == nil {
		return nil, nil
	}
	return lib, []clib.Symbol{
		{To: &lib.getinfo, Name: "fi_getinfo", Version: "FABRIC_1.3"},
		{To: &lib.freeinfo, Name: "fi_freeinfo", Version: "FABRIC_1.3"},
		{To: &lib.dupinfo, Name: "fi_dupinfo", Version: "FABRIC_1.3"},
		{To: &lib.fabric, Name: "fi_fabric", Version: "FABRIC_1.1"},
		{To: &lib.strerror, Name: "fi_strerror", Version: "FABRIC_1.0"},
		{To: &lib.version, Name: "fi_version", Version: "FABRIC_1.0"},
	}
}

func freeLib(lib *fiLib) { C.free(unsafe.Pointer(lib)) }

// getenv, setenv and unsetenv are the C library's: the host process may have changed its environment behind Go's copy.
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

// text is a Go string; of nil, "". newText is malloc's.
func text(c *C.char) string    { return C.GoString(c) }
func newText(s string) *C.char { return C.CString(s) }

// pciOf is nil unless the device is on a PCI bus.
func pciOf(info *fiInfo) *fiPCI { return C.ofi_pci(info) }

// sourceOf is an entry's own address, in place.
func sourceOf(info *fiInfo) []byte {
	if info.src_addr == nil {
		return nil
	}
	return unsafe.Slice((*byte)(info.src_addr), int(info.src_addrlen))
}

func fiVersion(lib *fiLib) uint32 { return uint32(C.ofi_version(lib)) }

// getinfo implements fi_getinfo. The list is the caller's, for freeinfo.
func (l *library) getinfo(flags uint64, hints *fiInfo) (*fiInfo, error) {
	var list *fiInfo
	rc := C.ofi_getinfo(l.lib, C.uint32_t(l.api), C.uint64_t(flags), hints, &list)
	if rc != 0 {
		return nil, &clib.CallError{Errno: syscall.Errno(-C.ofi_errno(C.long(rc))), Text: l.strerror(int(-rc))}
	}
	return list, nil
}

// freeinfo implements fi_freeinfo.
func (l *library) freeinfo(list *fiInfo) {
	if list != nil {
		C.ofi_freeinfo(l.lib, list)
	}
}

// dupinfo implements fi_dupinfo; of nil, an empty one. nil without memory.
func (l *library) dupinfo(info *fiInfo) *fiInfo { return C.ofi_dupinfo(l.lib, info) }

// strerror implements fi_strerror.
func (l *library) strerror(errno int) string { return C.GoString(C.ofi_strerror(l.lib, C.int(errno))) }

// check is nil unless the call returned a negative code.
func (l *library) check(call string, rc int) error {
	if rc >= 0 {
		return nil
	}
	return l.errno(call, syscall.Errno(-C.ofi_errno(C.long(rc))))
}

func (l *library) errno(call string, e syscall.Errno) error {
	return &clib.CallError{Call: call, Errno: e, Text: l.strerror(int(e))}
}

func (l *library) openFabric(info *fiInfo) (out *fiFabric, err error) {
	rc := C.ofi_fabric(l.lib, info.fabric_attr, &out)
	return out, l.check("fi_fabric", int(rc))
}

func (l *library) openDomain(f *fiFabric, info *fiInfo) (out *fiDomain, err error) {
	rc := C.fi_domain(f, info, &out, nil)
	return out, l.check("fi_domain", int(rc))
}

func (l *library) openAV(d *fiDomain) (out *fiAV, err error) {
	rc := C.ofi_av_open(d, &out)
	return out, l.check("fi_av_open", int(rc))
}

func (l *library) openCQ(d *fiDomain, size uint32, wait fiWait) (out *fiCQ, err error) {
	rc := C.ofi_cq_open(d, C.size_t(size), wait, &out)
	return out, l.check("fi_cq_open", int(rc))
}

// waitFD implements FI_GETWAIT; -1 where the queue has no descriptor.
func waitFD(cq *fiCQ) int {
	fd := C.int(-1)
	if C.ofi_cq_getwait(cq, &fd) != 0 {
		return -1
	}
	return int(fd)
}

// raise implements fi_cq_signal.
func raise(cq *fiCQ) bool { return C.fi_cq_signal(cq) == 0 }

func (l *library) openEP(d *fiDomain, info *fiInfo) (out *fiEP, err error) {
	rc := C.fi_endpoint(d, info, &out, nil)
	return out, l.check("fi_endpoint", int(rc))
}

// enable implements fi_ep_bind of address vector and queue, and fi_enable.
func (l *library) enable(ep *fiEP, av *fiAV, cq *fiCQ) error {
	if err := l.check("fi_ep_bind (address vector)", int(C.fi_ep_bind(ep, &av.fid, 0))); err != nil {
		return err
	}
	if err := l.check("fi_ep_bind (completion queue)", int(C.fi_ep_bind(ep, &cq.fid, C.FI_SEND|C.FI_RECV))); err != nil {
		return err
	}
	return l.check("fi_enable", int(C.fi_enable(ep)))
}

// getname implements fi_getname.
func (l *library) getname(ep *fiEP) ([]byte, error) {
	var addr [maxAddr]byte
	n := C.size_t(len(addr))
	err := l.check("fi_getname", int(C.fi_getname(&ep.fid, unsafe.Pointer(&addr[0]), &n)))
	if err != nil {
		return nil, err
	}
	return append([]byte(nil), addr[:n]...), nil
}

// setOff implements fi_setopt of a bool. Libraries that don't know the option refuse it: no harm.
func setOff(ep *fiEP, option int) {
	no := C.bool(false)
	C.fi_setopt(&ep.fid, C.FI_OPT_ENDPOINT, C.int(option), unsafe.Pointer(&no), C.size_t(unsafe.Sizeof(no)))
}

// requireP2P implements fi_setopt of FI_OPT_FI_HMEM_P2P: the device moves memory of GPUs, or nobody does.
func (l *library) requireP2P(ep *fiEP) error {
	only := C.int(C.FI_HMEM_P2P_REQUIRED)
	rc := C.fi_setopt(&ep.fid, C.FI_OPT_ENDPOINT, C.FI_OPT_FI_HMEM_P2P, unsafe.Pointer(&only), C.size_t(unsafe.Sizeof(only)))
	return l.check("FI_OPT_FI_HMEM_P2P", int(rc))
}

// boolOption implements fi_getopt; false where the library doesn't know.
func boolOption(ep *fiEP, option int) bool {
	var value C.bool
	n := C.size_t(unsafe.Sizeof(value))
	return C.fi_getopt(&ep.fid, C.FI_OPT_ENDPOINT, C.int(option), unsafe.Pointer(&value), &n) == 0 && bool(value)
}

// sizeOption implements fi_getopt; 0 where the library doesn't know.
func sizeOption(ep *fiEP, option int) uint64 {
	var value C.size_t
	n := C.size_t(unsafe.Sizeof(value))
	if C.fi_getopt(&ep.fid, C.FI_OPT_ENDPOINT, C.int(option), unsafe.Pointer(&value), &n) != 0 {
		return 0
	}
	return uint64(value)
}

// insert implements fi_av_insert of one address.
func (l *library) insert(av *fiAV, addr []byte) (fiAddr, error) {
	var room [maxAddr]byte // libfabric never reads behind the peer's bytes
	copy(room[:], addr)
	at := fiAddr(C.FI_ADDR_NOTAVAIL)
	rc := C.fi_av_insert(av, unsafe.Pointer(&room[0]), 1, &at, 0, nil)
	if rc == 1 && at != C.FI_ADDR_NOTAVAIL {
		return at, nil
	}
	if rc >= 0 {
		rc = -C.FI_EADDRNOTAVAIL
	}
	return at, l.check("fi_av_insert", int(rc))
}

// remove implements fi_av_remove.
func remove(av *fiAV, at fiAddr) { C.fi_av_remove(av, &at, 1, 0) }

// close implements fi_close.
func (l *library) close(fid *fiFid) error { return l.check("fi_close", int(C.fi_close(fid))) }

// setKey gives an entry CXI's key, which fi_domain will show to the device; endpoints inherit it. fi_freeinfo frees it.
func (l *library) setKey(info *fiInfo, k *Key) error {
	key := (*C.ofi_cxi_key)(C.calloc(1, C.sizeof_ofi_cxi_key))
	if key == nil {
		return l.errno("", syscall.ENOMEM)
	}
	key.svc_id, key.vni = C.uint32_t(k.Service), C.uint16_t(k.VNI)
	C.free(unsafe.Pointer(info.domain_attr.auth_key))
	info.domain_attr.auth_key = (*C.uint8_t)(unsafe.Pointer(key))
	info.domain_attr.auth_key_size = C.sizeof_ofi_cxi_key
	return nil
}
