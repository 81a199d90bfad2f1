// Package sock has the data path of the TCP rail in C: frames, placement, acknowledgements, polling. Package tcp makes the
// connections and hands them over. package tcp's comment has the protocol.
package sock

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17 -D_GNU_SOURCE
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "sock.h"
*/
import "C"

import (
	"errors"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/option"
	_ "gorail/backend/provider/internal/clib" // its guarded copies
	"gorail/backend/trust"
)

// Salt is the salt of a session's keys of regions.
type Salt = [16]byte

// Segment bits of a remote address: the region's number is above them.
const (
	OffsetBits = C.TCP_OFFSET_BITS
	MaxRegions = C.TCP_REGIONS
	MaxMsg     = C.TCP_BODY
	PackBody   = C.TCP_PACK_BODY
)

// Rail is the C rail that the core posts to and polls. Its methods are safe for concurrent use.
type Rail struct{ c *C.tcp_rail }

// NewRail makes a rail without connections, which the core's progress thread of that number polls. Implements epoll_create1,
// eventfd. The error is an errno.
func NewRail(worker int) (*Rail, error) {
	var errno C.int
	c := C.tcp_rail_new(C.uint32_t(worker), &errno)
	if c == nil {
		return nil, syscall.Errno(errno)
	}
	return &Rail{c}, nil
}

// Core returns the gr_rail.
func (r *Rail) Core() unsafe.Pointer { return unsafe.Pointer(r.c) }

// Free frees the rail. EBUSY: a connection or a region is open.
func (r *Rail) Free() error { return errno(C.tcp_rail_free(r.c)) }

// Use makes the rail copy memory of a GPU: regions may name it. The rail must be freed before the GPU. Implements timerfd_create.
func (r *Rail) Use(g *GPU) error { return errno(C.tcp_rail_gpu(r.c, (*C.tcp_gpu)(g.Core()))) }

// Failed returns how many copies of the GPU have failed, and why the last one did.
func (r *Rail) Failed(g *GPU) (n uint64, why error) {
	var f C.gr_gpu_fault
	n = uint64(C.tcp_rail_failed(r.c, (*C.tcp_gpu)(g.Core()), &f))
	return n, gpuFault(unsafe.Pointer(&f))
}

// Entry is a range of the table, of host memory, or of GPU memory. Ours: it is a bounce buffer.
type Entry struct {
	Addr, Length, Key uint64
	Peers             option.Rights
	GPU               *GPU // nil: host memory
	Ours              bool
	Number            uint32 // by Register
	Err               error  // by Register. ENOSPC: the table is full
}

// Register enters ranges into the table, in one call.
func (r *Rail) Register(list []Entry) {
	c := make([]C.tcp_entry, len(list))
	for i, e := range list {
		c[i] = C.tcp_entry{addr: C.uint64_t(e.Addr), len: C.uint64_t(e.Length), key: C.uint64_t(e.Key), peers: rights(e.Peers)}
		if e.Ours {
			c[i].peers |= C.TCP_OURS
		}
		if e.GPU != nil {
			c[i].gpu = (*C.tcp_gpu)(e.GPU.Core())
		}
	}
	C.tcp_register_all(r.c, unsafe.SliceData(c), C.size_t(len(c)))
	for i := range list {
		list[i].Number, list[i].Err = uint32(c[i].number), errno(C.int(c[i].err))
	}
}

// AwaitCopies waits as Deregister does, for copies of GPU memory that is not in the table: those of our own transfers. The transfers have ended, so
// their copies are counted as posted. Copies end in turn: if as many have ended as were posted, none is under way, and there is no call.
func (r *Rail) AwaitCopies(addr, length uint64, g *GPU) error {
	c := (*C.tcp_gpu)(g.Core())
	posted := atomic.LoadUint64((*uint64)(&c.nposted)) // first: what is posted after it is of other memory
	if atomic.LoadUint64((*uint64)(&c.nended)) >= posted {
		return nil
	}
	return errno(C.tcp_await_copies(r.c, C.uint64_t(addr), C.uint64_t(length), c))
}

func rights(peers option.Rights) (bits C.uint8_t) {
	if peers.Allow(option.PeersRead) {
		bits |= C.TCP_PEERS_READ
	}
	if peers.Allow(option.PeersWrite) {
		bits |= C.TCP_PEERS_WRITE
	}
	return bits
}

// Deregister ends all access to a range. No call of the kernel for it, and no copy by a GPU, is under way when it returns. EBUSY:
// such a copy has not ended within a second.
func (r *Rail) Deregister(number uint32) error {
	return errno(C.tcp_deregister(r.c, C.uint32_t(number)))
}

// Counters count since the rail was opened.
type Counters struct {
	Sends, Receives, Waits uint64 // system calls
	Refused                uint64 // operations of peers
	Broken                 uint64 // connections of peers that broke a rule
	Forged                 uint64 // connections with a record that was not the peer's
	Texts, Packed          uint64 // bytes that were packed; as many as they became
	Regions                uint64 // in the table now
}

// Counters reads the counters.
func (r *Rail) Counters() Counters {
	c := C.tcp_rail_counters(r.c)
	return Counters{uint64(c.sends), uint64(c.receives), uint64(c.waits), uint64(c.refused), uint64(c.broken), uint64(c.forged), uint64(c.texts), uint64(c.packed), uint64(c.regions)}
}

// Encrypt makes connections of the rail able to encrypt, before the first is made. path is a file name or a path of libcrypto; empty:
// the usual names. The error is the loader's, or says what the library lacks. Implements dlopen.
func (r *Rail) Encrypt(path string) error {
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var why [512]C.char
	if C.tcp_rail_encrypt(r.c, cpath, &why[0], C.size_t(len(why))) != 0 {
		return errors.New(C.GoString(&why[0]))
	}
	return nil
}

// CheckLibcrypto says why Encrypt would fail. Implements dlopen.
func CheckLibcrypto(path string) error {
	r, err := NewRail(0)
	if err != nil {
		return err
	}
	defer func() { _ = r.Free() }() // nothing is open
	return r.Encrypt(path)
}

// Tune changes, for tests, how many records and bytes one key is for, and the bytes of a record inside a frame's body.
func (r *Rail) Tune(records, bytes uint64, body uint32) {
	C.tcp_rail_tune(r.c, C.uint64_t(records), C.uint64_t(bytes), C.uint32_t(body))
}

// SessionKey is the key of a region for the sessions with this salt.
func SessionKey(salt Salt, key uint64, number uint32) uint64 {
	return uint64(C.tcp_session_key((*C.uint8_t)(&salt[0]), C.uint64_t(key), C.uint32_t(number)))
}

// Conn is an endpoint: one connection to one peer.
type Conn struct{ c *C.tcp_conn }

// NewConn makes an endpoint. Nothing can be posted yet.
func (r *Rail) NewConn() (*Conn, error) {
	c := C.tcp_conn_new(r.c)
	if c == nil {
		return nil, syscall.ENOMEM
	}
	return &Conn{c}, nil
}

// Core returns the `ep` of the ops table, valid until Close.
func (c *Conn) Core() unsafe.Pointer { return unsafe.Pointer(c.c) }

// Begin lets operations be posted. They wait for Attach.
func (c *Conn) Begin(salt Salt) { C.tcp_conn_begin(c.c, (*C.uint8_t)(&salt[0])) }

// Encrypt puts all bytes of the connection into records under keys of this secret, before Attach. The rail must be able to.
func (c *Conn) Encrypt(s *trust.RecordSecret, initiator bool) error {
	end := C.int(0)
	if initiator {
		end = 1
	}
	return errno(C.tcp_conn_encrypt(c.c, (*C.uint8_t)(&s.Bytes()[0]), end))
}

// Attach gives the connection its socket, which must be non-blocking. The socket is closed with the connection, and also if
// Attach fails. Implements epoll_ctl.
func (c *Conn) Attach(fd int) error { return errno(C.tcp_conn_attach(c.c, C.int(fd))) }

// Broken ends all operations with an errno: there will be no socket. After Attach it does nothing.
func (c *Conn) Broken(e syscall.Errno) { C.tcp_conn_broken(c.c, C.int(e)) }

// Info returns TCP_INFO and the bytes of the send buffer. Fields that the kernel does not know are 0. It returns false without a
// socket. Implements getsockopt.
func (c *Conn) Info() (info unix.TCPInfo, sendBuffer uint64, ok bool) {
	var size C.int
	ok = C.tcp_conn_option(c.c, unix.IPPROTO_TCP, unix.TCP_INFO, unsafe.Pointer(&info), C.uint32_t(unsafe.Sizeof(info))) == 0 &&
		C.tcp_conn_option(c.c, unix.SOL_SOCKET, unix.SO_SNDBUF, unsafe.Pointer(&size), C.uint32_t(unsafe.Sizeof(size))) == 0
	return info, uint64(size), ok
}

// Close closes the socket. No operation touches a buffer afterwards; polls report them as ECANCELED. False: a GPU has not ended a copy
// within a second. Its operations get no completion, and what it may touch stays allocated until Rail.Kept is 0.
func (c *Conn) Close() (gpu int, ended bool) {
	late := C.tcp_conn_close(c.c)
	return int(late) - 1, late == 0
}

// Kept is the number of closed connections with copies that GPUs have not ended. It polls them.
func (r *Rail) Kept() int { return int(C.tcp_rail_kept(r.c)) }

func errno(e C.int) error {
	if e == 0 {
		return nil
	}
	return syscall.Errno(e)
}
