// Package drive lets Go tests post and poll through the ops table of include/gr_provider.h as the core does: under the
// rail's lock, with contexts in C memory. It makes one cgo call per operation, so it is for tests only.
package drive

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "gr_provider.h"

typedef struct { gr_ctx ctx; uint64_t id; } drive_ctx;

static int drive_one(gr_rail *rail, void *ep, int kind, uint32_t n, const gr_seg *seg, uint64_t id)
{
    drive_ctx *c = calloc(1, sizeof(*c));
    int rc;
    if (!c)
        return -ENOMEM;
    c->id = id;
    if (kind == 2 || kind == 6)
        rc = rail->ops->send(rail, ep, (void *)seg->laddr, seg->len, seg->ldesc, kind == 2, &c->ctx);
    else if (kind == 3)
        rc = rail->ops->recv(rail, ep, (void *)seg->laddr, seg->len, seg->ldesc, &c->ctx);
    else
        rc = rail->ops->rma(rail, ep, kind, n, seg, &c->ctx);
    if (rc)
        free(c);
    return rc;
}

typedef struct { void *ep; int kind; uint32_t n; uint64_t id; } drive_op;

// Posts the operations under one lock. Their segments follow one another in seg. Returns 0, or the error of the first
// failed post.
static int drive_post(gr_rail *rail, const drive_op *op, int n, const gr_seg *seg)
{
    int rc = 0;
    gr_rail_lock(rail);
    for (int i = 0; i < n && rc == 0; seg += op[i++].n)
        rc = drive_one(rail, op[i].ep, op[i].kind, op[i].n, seg, op[i].id);
    gr_rail_unlock(rail);
    return rc;
}

// Frees a context after 65,535 others, so that a second completion shows as that.
static void drive_free(void *ctx)
{
    static void *_Atomic late[1 << 16];
    static _Atomic unsigned next;
    free(atomic_exchange(&late[atomic_fetch_add(&next, 1) % (1 << 16)], ctx));
}

static int drive_poll(gr_rail *rail, gr_comp *out, int max, uint64_t *ids)
{
    gr_rail_lock(rail);
    int n = rail->ops->poll(rail, out, max);
    gr_rail_unlock(rail);
    if (n == 0 && rail->ops->assist)
        rail->ops->assist(rail);
    for (int i = 0; i < n; i++) {
        ids[i] = ((drive_ctx *)out[i].ctx)->id;
        drive_free(out[i].ctx);
    }
    return n;
}

static int drive_arm(gr_rail *rail)
{
    gr_rail_lock(rail);
    int rc = rail->ops->arm(rail);
    gr_rail_unlock(rail);
    return rc;
}

static int drive_reg(gr_rail *rail, void *buf, size_t len, void **mr, void **desc)
{
    gr_rail_lock(rail);
    int rc = rail->ops->reg(rail, buf, len, mr, desc);
    gr_rail_unlock(rail);
    return rc;
}

static void drive_unreg(gr_rail *rail, void *mr)
{
    gr_rail_lock(rail);
    rail->ops->unreg(rail, mr);
    gr_rail_unlock(rail);
}

static int drive_readable(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    return poll(&p, 1, 0);
}
*/
import "C"

import (
	"runtime"
	"syscall"
	"unsafe"
)

// Operation kinds, as in gr_provider.h.
const (
	Write           = C.GR_WRITE
	WriteUnsignaled = C.GR_WRITE_UNSIGNALED
	WriteFlushed    = C.GR_WRITE_FLUSHED
	Read            = C.GR_READ
	Send            = 2 // wakes the peer
	recv            = 3
	SendQuiet       = 6 // does not wake the peer
)

// Seg is a gr_seg.
type Seg struct {
	Local, Remote, Len uint64
	Desc               unsafe.Pointer
	Key                uint64
}

// Comp is a gr_comp. ID is the id of the posted operation.
type Comp struct {
	ID  uint64
	Err syscall.Errno // 0: success
	Len uint64
}

// IOVLimit, RxDepth and Chained return the fields of the gr_rail.
func (r Rail) IOVLimit() int { return int(r.c.limit.iov_limit) }
func (r Rail) RxDepth() int  { return int(r.c.limit.rx_depth) }
func (r Rail) Chained() bool { return r.c.is.chained != 0 }

// Rail drives one gr_rail.
type Rail struct{ c *C.gr_rail }

// New returns a Rail for the result of provider.Rail.Core.
func New(core unsafe.Pointer) Rail { return Rail{(*C.gr_rail)(core)} }

// Alloc returns zeroed memory outside Go's heap. It is never freed.
func Alloc(n int) []byte {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		panic(err)
	}
	return b
}

// Addr returns the address of memory from Alloc.
func Addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// RMA posts one work request. The error is a syscall.Errno. After EAGAIN, poll and try again.
func (r Rail) RMA(ep unsafe.Pointer, op int, id uint64, segs ...Seg) error {
	return r.Together(Op{ep, op, id, segs})
}

// Send posts a message from memory of Alloc.
func (r Rail) Send(ep unsafe.Pointer, id uint64, buf []byte, desc unsafe.Pointer) error {
	return r.Together(Op{ep, Send, id, Msg(buf, desc)})
}

// Recv posts a receive buffer from Alloc.
func (r Rail) Recv(ep unsafe.Pointer, id uint64, buf []byte, desc unsafe.Pointer) error {
	return r.Together(Op{ep, recv, id, Msg(buf, desc)})
}

// Op is an operation of Together. Kind is Write, WriteUnsignaled, WriteFlushed, Read, Send or SendQuiet.
type Op struct {
	Ep   unsafe.Pointer
	Kind int
	ID   uint64
	Segs []Seg
}

// Msg returns the single segment of a message in memory from Alloc.
func Msg(buf []byte, desc unsafe.Pointer) []Seg {
	return []Seg{{Local: Addr(buf), Len: uint64(len(buf)), Desc: desc}}
}

// Together posts operations under one lock, up to the first error.
func (r Rail) Together(all ...Op) error {
	ops, segs := make([]C.drive_op, len(all)), make([]C.gr_seg, 0, 1)
	for i, o := range all {
		ops[i] = C.drive_op{ep: o.Ep, kind: C.int(o.Kind), n: C.uint32_t(len(o.Segs)), id: C.uint64_t(o.ID)}
		for _, s := range o.Segs {
			segs = append(segs, C.gr_seg{laddr: C.uint64_t(s.Local), raddr: C.uint64_t(s.Remote), len: C.uint64_t(s.Len), ldesc: s.Desc,
				rkey: C.uint64_t(s.Key)})
		}
	}
	rc := C.drive_post(r.c, &ops[0], C.int(len(ops)), unsafe.SliceData(segs))
	runtime.KeepAlive(segs)
	return errno(rc)
}

// Poll takes up to max completions.
func (r Rail) Poll(max int) ([]Comp, error) {
	raw := make([]C.gr_comp, max)
	ids := make([]C.uint64_t, max)
	n := C.drive_poll(r.c, &raw[0], C.int(max), &ids[0])
	if n < 0 {
		return nil, errno(n)
	}
	out := make([]Comp, n)
	for i := range out {
		out[i] = Comp{ID: uint64(ids[i]), Err: syscall.Errno(raw[i].err), Len: uint64(raw[i].len)}
	}
	return out, nil
}

// Arm reports whether the caller may block on WaitFD now.
func (r Rail) Arm() bool { return C.drive_arm(r.c) == 0 }

// WaitFD returns the rail's descriptor, or -1.
func (r Rail) WaitFD() int { return int(r.c.wait_fd) }

// Readable reports whether poll(2) finds WaitFD readable now.
func (r Rail) Readable() bool { return C.drive_readable(r.c.wait_fd) > 0 }

// Reg registers a message buffer of the core.
func (r Rail) Reg(buf []byte) (mr, desc unsafe.Pointer, err error) {
	rc := C.drive_reg(r.c, unsafe.Pointer(&buf[0]), C.size_t(len(buf)), &mr, &desc)
	return mr, desc, errno(rc)
}

// Unreg undoes Reg.
func (r Rail) Unreg(mr unsafe.Pointer) { C.drive_unreg(r.c, mr) }

// Getenv reads the C environment, which Go's copy does not follow. It returns "" also for an unset variable.
func Getenv(name string) string {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return C.GoString(C.getenv(c))
}

func errno(rc C.int) error {
	if rc == 0 {
		return nil
	}
	return syscall.Errno(-rc)
}
