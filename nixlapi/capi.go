package nixlapi

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "capi.h"
*/
import "C"

import (
	"encoding/binary"
	"errors"
	"runtime"
	"unsafe"
)

// All cgo of the package is in this file, capi_xfer.go and capi_bench.go. The other files use ptr.
type ptr = unsafe.Pointer

func cOpen(path string) error {
	p := C.CString(path)
	defer C.free(ptr(p))
	if e := C.gn_open(p); e != nil {
		return errors.New(C.GoString(e))
	}
	return nil
}

func cPreload(path string) error {
	p := C.CString(path)
	defer C.free(ptr(p))
	if e := C.gn_preload(p); e != nil {
		return errors.New(C.GoString(e))
	}
	return nil
}

func cCreateAgent(name string, cfg Config) (ptr, Status) {
	n := C.CString(name)
	defer C.free(ptr(n))
	c := C.gn_config{
		prog_thread: C.bool(cfg.ProgThread), listen_thread: C.bool(cfg.ListenPort != 0),
		listen_port: C.int(cfg.ListenPort), sync: C.int(cfg.Sync), workers: 1,
		pthr_delay_us: C.uint64_t(cfg.ProgDelayUs), lthr_delay_us: 100000,
		telemetry: C.bool(cfg.Telemetry),
	}
	var out ptr
	s := C.gn_create_configured_agent(n, &c, &out)
	return out, Status(s)
}

func cDestroyAgent(a ptr) Status     { return Status(C.gn_destroy_agent(a)) }
func cDestroyBackend(b ptr) Status   { return Status(C.gn_destroy_backend(b)) }
func cSameBackend(a, b ptr) bool     { return bool(C.gn_same_backend(a, b)) }
func cReleaseDlist(a, h ptr) Status  { return Status(C.gn_release_xfer_dlist_handle(a, h)) }
func cDestroyXferList(l ptr)         { C.gn_destroy_xfer_dlist(l) }
func cDestroyRegList(l ptr)          { C.gn_destroy_reg_dlist(l) }
func cDestroyOpt(o ptr)              { C.gn_destroy_opt_args(o) }
func cDestroyNotifMap(m ptr)         { C.gn_destroy_notif_map(m) }
func cRegister(a, l, o ptr) Status   { return Status(C.gn_register_mem(a, l, o)) }
func cDeregister(a, l, o ptr) Status { return Status(C.gn_deregister_mem(a, l, o)) }

// cBlob copies a malloc'ed block to the Go heap and frees it.
func cBlob(d ptr, n C.size_t) []byte {
	if d == nil {
		return nil
	}
	b := append([]byte{}, unsafe.Slice((*byte)(d), int(n))...)
	C.free(d)
	return b
}

func cLocalMD(a ptr) ([]byte, Status) {
	var d ptr
	var n C.size_t
	s := C.gn_get_local_md(a, &d, &n)
	return cBlob(d, n), Status(s)
}

func cPartialMD(a, list, opt ptr) ([]byte, Status) {
	var d ptr
	var n C.size_t
	s := C.gn_get_local_partial_md(a, list, &d, &n, opt)
	return cBlob(d, n), Status(s)
}

func cLoadMD(a ptr, md []byte) (string, Status) {
	var name *C.char
	s := C.gn_load_remote_md(a, ptr(unsafe.SliceData(md)), C.size_t(len(md)), &name)
	if name == nil {
		return "", Status(s)
	}
	defer C.free(ptr(name))
	return C.GoString(name), Status(s)
}

func cInvalidate(a ptr, remote string) Status {
	n := C.CString(remote)
	defer C.free(ptr(n))
	return Status(C.gn_invalidate_remote_md(a, n))
}

func cCheckRemote(a ptr, remote string, list ptr) Status {
	n := C.CString(remote)
	defer C.free(ptr(n))
	return Status(C.gn_check_remote_md(a, n, list))
}

func cConnect(a ptr, remote string, opt ptr) Status {
	n := C.CString(remote)
	defer C.free(ptr(n))
	return Status(C.gn_agent_make_connection(a, n, opt))
}

func cPlugins(a ptr) ([]string, Status) {
	var l ptr
	if s := C.gn_get_available_plugins(a, &l); s != 0 {
		return nil, Status(s)
	}
	defer C.gn_destroy_string_list(l)
	var n C.size_t
	C.gn_string_list_size(l, &n)
	var out []string
	for i := C.size_t(0); i < n; i++ {
		var str *C.char
		if C.gn_string_list_get(l, i, &str) == 0 {
			out = append(out, C.GoString(str))
		}
	}
	return out, Success
}

// cParams reads a parameter map and a memory list, and destroys both.
func cParams(mems, params ptr) (map[string]string, []Mem) {
	defer C.gn_destroy_mem_list(mems)
	defer C.gn_destroy_params(params)
	var list []Mem
	var n C.size_t
	C.gn_mem_list_size(mems, &n)
	for i := C.size_t(0); i < n; i++ {
		var m C.int
		if C.gn_mem_list_get(mems, i, &m) == 0 {
			list = append(list, Mem(m))
		}
	}
	out := map[string]string{}
	var empty C.bool
	var it ptr
	if C.gn_params_is_empty(params, &empty) != 0 || bool(empty) || C.gn_params_create_iterator(params, &it) != 0 {
		return out, list
	}
	defer C.gn_params_destroy_iterator(it)
	for more := C.bool(true); bool(more); {
		var k, v *C.char
		if C.gn_params_iterator_next(it, &k, &v, &more) != 0 || k == nil {
			break
		}
		out[C.GoString(k)] = C.GoString(v)
	}
	return out, list
}

func cPluginParams(a ptr, plugin string) (map[string]string, []Mem, Status) {
	n := C.CString(plugin)
	defer C.free(ptr(n))
	var mems, params ptr
	if s := C.gn_get_plugin_params(a, n, &mems, &params); s != 0 {
		return nil, nil, Status(s)
	}
	p, m := cParams(mems, params)
	return p, m, Success
}

func cBackendParams(a, b ptr) (map[string]string, []Mem, Status) {
	var mems, params ptr
	if s := C.gn_get_backend_params(a, b, &mems, &params); s != 0 {
		return nil, nil, Status(s)
	}
	p, m := cParams(mems, params)
	return p, m, Success
}

func cCreateBackend(a ptr, plugin string, params map[string]string) (ptr, Status) {
	var p, b ptr
	if s := C.gn_create_params(&p); s != 0 {
		return nil, Status(s)
	}
	defer C.gn_destroy_params(p)
	for k, v := range params {
		ck, cv := C.CString(k), C.CString(v)
		C.gn_params_add(p, ck, cv)
		C.free(ptr(ck))
		C.free(ptr(cv))
	}
	n := C.CString(plugin)
	defer C.free(ptr(n))
	s := C.gn_create_backend(a, n, p, &b)
	return b, Status(s)
}

func cNotifMap() (ptr, Status) {
	var m ptr
	s := C.gn_create_notif_map(&m)
	return m, Status(s)
}

func cNotifs(a, m ptr) ([]Notif, Status) {
	var d *C.uint8_t
	var n C.size_t
	if s := C.gn_notifs(a, m, &d, &n); s != 0 || d == nil {
		return nil, Status(s)
	}
	raw := cBlob(ptr(d), n)
	var out []Notif
	for len(raw) >= 8 {
		nl, ml := binary.NativeEndian.Uint32(raw), binary.NativeEndian.Uint32(raw[4:])
		raw = raw[8:]
		out = append(out, Notif{From: string(raw[:nl]), Msg: raw[nl : nl+ml : nl+ml]})
		raw = raw[nl+ml:]
	}
	return out, Success
}

func cGenNotif(a ptr, remote string, msg []byte, opt ptr) Status {
	n := C.CString(remote)
	defer C.free(ptr(n))
	s := C.gn_gen_notif(a, n, ptr(unsafe.SliceData(msg)), C.size_t(len(msg)), opt)
	runtime.KeepAlive(msg)
	return Status(s)
}
