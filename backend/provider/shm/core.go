package shm

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
#cgo LDFLAGS: -lpthread
#include <stdlib.h>
#include "local.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/backend/provider/shm/handshake"
	"gorail/backend/provider/shm/ipc"
)

// The limits of C.
const (
	maxThreads = C.LC_THREADS
	maxRegions = C.LC_REGIONS
	maxShares  = C.LC_SHARES
	maxGPUs    = C.LC_GPUS
	maxNodes   = C.LC_NODES
)

// sizes of what peers share.
var sizes = handshake.Sizes{Segment: C.sizeof_lc_box, Table: C.LC_REGIONS * C.sizeof_lc_entry, Shares: C.sizeof_lc_shares}

// What Go and C have of what peers read is the same.
var (
	_ [C.sizeof_lc_entry - unsafe.Sizeof(entry{})]byte
	_ [unsafe.Sizeof(entry{}) - C.sizeof_lc_entry]byte
	_ [C.sizeof_lc_shares - unsafe.Sizeof(shareTable{})]byte
	_ [unsafe.Sizeof(shareTable{}) - C.sizeof_lc_shares]byte
	_ [unsafe.Offsetof(shareTable{}.share) - unsafe.Offsetof(C.lc_shares{}.share)]byte
)

// failed is the error of a call that returned 0 or a negative errno.
func failed(rc C.int) error {
	if rc < 0 {
		return unix.Errno(-rc)
	}
	return nil
}

// core is the half of a rail that posts and polls: local.h. Its methods are safe for concurrent use, but for close.
type core struct {
	c      *C.lc_rail
	loaded *atomic.Pointer[gpu.Driver] // what drives the GPUs of regions; nil: there is none yet
}

// parts of a core, made by Go and its own from then on.
type parts struct {
	table, shares unsafe.Pointer
	wait, bell    int
	mapper        int // stays Go's
}

// openCore implements lc_rail_open.
func openCore(o Options, cpus int, near []bind, p parts) (core, error) {
	var nodes C.lc_nodes
	for _, b := range near {
		n := &nodes.node[nodes.n]
		n.id = C.int(b.node)
		for _, cpu := range b.cpus {
			n.cpus[cpu/64] |= 1 << (cpu % 64) // allowed has no more than CPUSet
		}
		nodes.n++
	}
	from := C.lc_parts{table: (*C.lc_entry)(p.table), shares: (*C.lc_shares)(p.shares), wait_fd: C.int(p.wait), bell_fd: C.int(p.bell), mapper_fd: C.int(p.mapper)}
	var c *C.lc_rail
	if err := failed(C.lc_rail_open(C.uint32_t(o.Threads), &nodes, &from, &c)); err != nil {
		return core{}, err
	}
	c.gpu.blocks = C.uint32_t(o.Blocks)
	if o.Aloof {
		c.favour.aloof = 1
	}
	c.cpus = C.uint32_t(cpus)
	return core{c, new(atomic.Pointer[gpu.Driver])}, nil
}

// close implements lc_rail_close.
func (k core) close() error { return failed(C.lc_rail_close(k.c)) }

// proof is the memory that a peer has to read.
func (k core) proof() []byte { return unsafe.Slice((*byte)(&k.c.proof[0]), ipc.TokenSize) }

func (k core) caps() provider.Caps {
	return provider.Caps{ProviderKeys: true, KeySize: 8, Bulk: true, Descriptors: 4, MaxMsg: uint64(k.c.base.max_msg), Whole: C.LC_ALONE}
}

// late is who a copy was waited for in vain last. Implements lc_late.
func (k core) late() uint64 { return uint64(C.lc_late(k.c)) }

// helped implements lc_helped.
func (k core) helped() (forPeers, byPeers uint64) {
	var f, b C.uint64_t
	C.lc_helped(k.c, &f, &b)
	return uint64(f), uint64(b)
}

// quiet waits, a second at most, until nobody copies to or from a region whose key was revoked. ETIMEDOUT: a process is still in the middle of a copy.
// Implements lc_quiet.
func (k core) quiet(key uint64) error {
	return failed(C.lc_quiet(k.c, nil, C.lc_region_bit(C.uint64_t(key))))
}

// ---- endpoints ----

// coreEP is the half of an endpoint that posts and polls. It implements handshake.Owner.
type coreEP struct{ c *C.lc_ep }

var _ handshake.Owner = coreEP{}

// open implements lc_ep_open. segment is the endpoint's from then on.
func (k core) open(segment unsafe.Pointer) (coreEP, error) {
	var c *C.lc_ep
	err := failed(C.lc_ep_open(k.c, (*C.lc_box)(segment), &c))
	return coreEP{c}, err
}

// shut implements lc_ep_shut.
func (p coreEP) shut() error { return failed(C.lc_ep_shut(p.c)) }

// imports says whether it ever had memory of its peer's GPUs mapped. Once it is shut.
func (p coreEP) imports() bool { return p.c.gpu.imports != 0 }

// free implements lc_ep_free.
func (p coreEP) free() { C.lc_ep_free(p.c) }

// named implements lc_ep_named.
func (p coreEP) named() error { return failed(C.lc_ep_named(p.c)) }

// forget implements lc_import_drop: false where there was none.
func (p coreEP) forget(region uint32) bool { return C.lc_import_drop(p.c, C.uint32_t(region)) != 0 }

func (p coreEP) Identified(pid, pidfd int) { C.lc_ep_identified(p.c, C.pid_t(pid), C.int(pidfd)) }
func (p coreEP) Accepted(sock int)         { C.lc_ep_accepted(p.c, C.int(sock)) }

func (p coreEP) Connected(of *handshake.Peer) error {
	peer := C.lc_peer{box: (*C.lc_box)(of.Segment), table: (*C.lc_entry)(of.Table), shares: (*C.lc_shares)(of.Shares), sock: C.int(of.Sock), mem: C.int(of.Memory)}
	if of.Self {
		peer.self = 1
	}
	return failed(C.lc_ep_connected(p.c, &peer))
}

func (p coreEP) Failed(errno unix.Errno, ended bool) {
	dead := C.int(0)
	if ended {
		dead = 1
	}
	C.lc_ep_fail(p.c, C.int(errno), dead)
}
