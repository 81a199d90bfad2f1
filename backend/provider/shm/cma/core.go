// Package cma is the part of package shm that posts and polls, in C: messages, copies by process_vm_readv and
// process_vm_writev (CMA), and copies by GPUs. A pool of threads, polling threads and peers make the copies. cma.h
// has the outline. The Go code here wraps the C functions.
package cma

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
#cgo LDFLAGS: -lpthread
#include <stdlib.h>
#include "cma.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/backend/host"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/shm/ipc"
)

// The encodings have equal sizes.
const _ = uint(C.CMA_PLACE-ipc.PlaceSize) + uint(ipc.PlaceSize-C.CMA_PLACE)

// Limits of the C code.
const (
	MaxThreads = C.CMA_THREADS
	MaxRegions = C.CMA_REGIONS
	MaxShares  = C.CMA_SHARES
	FileShare  = C.CMA_FILE // cma_entry.share of host memory whose file peers may have
	MaxGPUs    = C.CMA_GPUS
	MaxNodes   = C.CMA_NODES
	RingUnit   = C.CMA_CHUNKS * 4096 // a ring's size is a multiple of it: chunks begin at pages
)

// Sizes of cma_entry and cma_shares, and the offset of the shares. Go writes both, and peers read them.
const (
	EntrySize  = C.sizeof_cma_entry
	SharesSize = C.sizeof_cma_shares
	SharesAt   = unsafe.Offsetof(C.cma_shares{}.share)
)

// Sizes are the sizes of the segments that peers share.
var Sizes = ipc.SegmentSizes{Segment: C.sizeof_cma_shm, Table: C.CMA_REGIONS * C.sizeof_cma_entry, Shares: C.sizeof_cma_shares, RingUnit: RingUnit}

// failed turns a result of C, 0 or a negative errno, into an error.
func failed(rc C.int) error {
	if rc < 0 {
		return unix.Errno(-rc)
	}
	return nil
}

// Rail is the part of a rail that posts and polls. Its methods are safe for concurrent use, except Close.
type Rail struct {
	c      *C.cma_rail
	loaded *atomic.Pointer[gpu.Driver] // driver of the GPUs; nil: no GPU region yet
	host   *ipc.Host
}

// Options of a Rail.
type Options struct {
	Threads  int     // of the pool, at most MaxThreads
	Copies   gpu.How // copies between GPUs
	NoAssist bool    // polling threads copy nothing for peers
	CPUs     int     // processors that this process may use
	Binds    []Bind  // at most MaxNodes; none: no choice
	Host     *ipc.Host
}

// Bind lists the processors for pool threads that copy memory of a NUMA node.
type Bind struct {
	Node int
	CPUs []int
}

// Parts are made by Go and owned by the Rail once it is open.
type Parts struct {
	Table, Shares  unsafe.Pointer
	Wait, Doorbell int
	Mapper         int // an eventfd that stays Go's
}

// Open implements cma_rail_open.
func Open(o Options, p Parts) (Rail, error) {
	var nodes C.cma_nodes
	for _, b := range o.Binds {
		n := &nodes.node[nodes.n]
		n.id = C.int(b.Node)
		for _, cpu := range b.CPUs {
			n.cpus[cpu/64] |= 1 << (cpu % 64) // the bits are those of unix.CPUSet, so no index is out of range
		}
		nodes.n++
	}
	from := C.cma_parts{table: (*C.cma_entry)(p.Table), shares: (*C.cma_shares)(p.Shares), wait_fd: C.int(p.Wait), doorbell_fd: C.int(p.Doorbell), mapper_fd: C.int(p.Mapper)}
	var c *C.cma_rail
	if err := failed(C.cma_rail_open(C.uint32_t(o.Threads), &nodes, &from, &c)); err != nil {
		return Rail{}, err
	}
	c.gpu.how = C.uint32_t(o.Copies)
	if o.NoAssist {
		c.assist.off = 1
	}
	c.cpus = C.uint32_t(o.CPUs)
	return Rail{c, new(atomic.Pointer[gpu.Driver]), o.Host}, nil
}

// Core is the gr_rail.
func (k Rail) Core() unsafe.Pointer { return unsafe.Pointer(k.c) }

// Close implements cma_rail_close.
func (k Rail) Close() error { return failed(C.cma_rail_close(k.c)) }

// Proof is the memory with the secret bytes that a peer reads.
func (k Rail) Proof() []byte { return unsafe.Slice((*byte)(&k.c.proof[0]), ipc.TokenSize) }

// Rights are what peers may do with each region, by the index of its entry. Write them before the entry.
func (k Rail) Rights() []option.Rights { return unsafe.Slice((*option.Rights)(k.c.rights), MaxRegions) }

// Caps are the rail's capabilities.
func (k Rail) Caps() provider.Caps {
	return provider.Caps{ProviderKeys: true, KeySize: 8, Bulk: true, Descriptors: 4, MaxMsg: uint64(k.c.base.limit.max_msg), PreferUnsplit: C.CMA_UNSPLIT}
}

// Late is the last wait for a copy that timed out: process << 8 | state. Implements cma_late.
func (k Rail) Late() uint64 { return uint64(C.cma_late(k.c)) }

// Refused is the last peer whose memory this process may not access any more, since its last call: process << 8 | errno; 0: none. Implements
// cma_refused.
func (k Rail) Refused() uint64 {
	if k.c == nil { // tests of a rail's Go alone
		return 0
	}
	return uint64(C.cma_refused(k.c))
}

// Assisted implements cma_assisted.
func (k Rail) Assisted() (forPeers, byPeers uint64) {
	var f, b C.uint64_t
	C.cma_assisted(k.c, &f, &b)
	return uint64(f), uint64(b)
}

// WaitIdle waits, 1 s at most, until no copy to or from a region with a revoked key is under way. ETIMEDOUT: a
// process has not finished a copy. Implements cma_wait_idle.
func (k Rail) WaitIdle(key uint64) error {
	return failed(C.cma_wait_idle(k.c, nil, C.cma_region_bit(C.uint64_t(key))))
}

// ---- endpoints ----

// Endpoint is the part of an endpoint that posts and polls. It implements handshake.Owner.
type Endpoint struct{ c *C.cma_ep }

var _ ipc.HandshakeOwner = Endpoint{}

// option.Rights has the bits of C.
var _ = [1]struct{}{}[option.PeersRead-C.CMA_MAY_READ|option.PeersWrite-C.CMA_MAY_WRITE]

// OpenEndpoint implements cma_ep_open. The endpoint owns segment and ring afterwards, unless the call fails. ringSize is the ring's
// size in bytes, a multiple of RingUnit.
func (k Rail) OpenEndpoint(segment, ring unsafe.Pointer, ringSize uint64) (Endpoint, error) {
	var c *C.cma_ep
	err := failed(C.cma_ep_open(k.c, (*C.cma_shm)(segment), ring, C.uint64_t(ringSize), &c))
	return Endpoint{c}, err
}

// Core is the `ep` of the ops table.
func (p Endpoint) Core() unsafe.Pointer { return unsafe.Pointer(p.c) }

// Shut implements cma_ep_shut.
func (p Endpoint) Shut() error { return failed(C.cma_ep_shut(p.c)) }

// Imports reports that the endpoint has had its peer's memory mapped, of GPUs or of the host. Call it after Shut.
func (p Endpoint) Imports() bool { return p.c.gpu.imports != 0 || p.c.views.used != 0 }

// Free implements cma_ep_free.
func (p Endpoint) Free() {
	fd := p.Pidfd()
	if C.cma_ep_free(p.c) == 0 {
		host.ReleasePidfd(fd)
	}
}

// Pidfd is the peer's pidfd, which stays the endpoint's; -1: none. The handshake must have ended.
func (p Endpoint) Pidfd() int { return int(p.c.peer.pidfd) }

// Server is the encoded ipc.Place of the peer's descriptor server, as the peer claims; nil: the peer has not connected.
func (p Endpoint) Server() []byte {
	if p.c.peer.shares == nil {
		return nil
	}
	return C.GoBytes(unsafe.Pointer(&p.c.peer.shares.place), C.CMA_PLACE)
}

// BeginConnect implements cma_ep_begin_connect.
func (p Endpoint) BeginConnect() error { return failed(C.cma_ep_begin_connect(p.c)) }

// Forget implements cma_import_drop: false if there was no import.
func (p Endpoint) Forget(region uint32) bool { return C.cma_import_drop(p.c, C.uint32_t(region)) != 0 }

// Identified implements cma_ep_identified.
func (p Endpoint) Identified(pid, fd int) {
	C.cma_ep_identified(p.c, C.pid_t(pid), C.int(host.SharePidfd(pid, fd)), 1)
}

// Accepted implements cma_ep_accepted.
func (p Endpoint) Accepted(sock int, moves bool) {
	m := C.int(0)
	if moves {
		m = 1
	}
	C.cma_ep_accepted(p.c, C.int(sock), m)
}

// Connected implements cma_ep_connected.
func (p Endpoint) Connected(of *ipc.Peer) error {
	peer := C.cma_peer{shm: (*C.cma_shm)(of.Segment), table: (*C.cma_entry)(of.Table), shares: (*C.cma_shares)(of.Shares), sock: C.int(of.Sock),
		ring: of.Ring, ring_size: C.uint64_t(of.RingSize)}
	if of.Self {
		peer.self = 1
	}
	if of.Apart {
		peer.apart = 1
	}
	if of.Assist {
		peer.same_user = 1
	}
	return failed(C.cma_ep_connected(p.c, &peer))
}

// Failed implements cma_ep_fail.
func (p Endpoint) Failed(errno unix.Errno, ended bool) {
	dead := C.int(0)
	if ended {
		dead = 1
	}
	C.cma_ep_fail(p.c, C.int(errno), dead)
}
