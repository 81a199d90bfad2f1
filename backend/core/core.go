// Package core is the C core of an engine and its Go face: posting, polling, counting transfers down, sending and
// taking in notifications, all without the Go scheduler. The C side is described in gr_policy.h and base/base.h; it is in packages by layers:
// base, link, transfer, control.
//
// Go decides (peers, keys, errors, replays) and is told through Events. Memory shared with C is C's; Go reads and
// writes it through the typed views here.
package core

/*
#cgo CFLAGS: -std=gnu17 -O2 -Wall -Wextra -Werror
#cgo LDFLAGS: -lpthread
#include "gr_policy.h"
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	_ "gorail/backend/core/control" // the C
)

// ErrFull says that a session's notification queue has reached its limit.
var ErrFull = errors.New("notification queue is full")

// Core is one engine's C core. Its methods are safe for concurrent use unless they say otherwise.
type Core struct{ c *C.gr_core }

// batchBytes is what a link takes at a time of a transfer that it shares. A batch is the grain of the balance at a transfer's
// end: 8 ms at 250 Mbit/s, 5 us at 400 Gbit/s.
const batchBytes = 256 << 10

// Slots is how many rails a core takes: the loopback device and this host's memory come on top of those of the option max_rails.
func Slots(maxRails int) int { return maxRails + 2 }

// Config is what a core is made with: the options of these names.
type Config struct {
	MaxRails             int
	WindowMin, WindowMax uint64        // bytes in flight of a link
	WindowTime           time.Duration // of the rate of a link that its window is
	InflightOps          int           // work requests in flight of a link
	SpinTime             time.Duration // that the thread polls for before it sleeps
	NotifQueue           uint64        // bytes of notifications that wait, of a peer,
	NotifMemory          uint64        // and of all
}

// New starts a core with its one thread. Implements gr_core_new.
func New(o Config) (*Core, error) {
	cfg := C.gr_core_cfg{
		max_rails:   C.uint32_t(Slots(o.MaxRails)),
		window_min:  C.uint64_t(o.WindowMin),
		window_max:  C.uint64_t(o.WindowMax),
		window_ns:   C.uint64_t(o.WindowTime.Nanoseconds()),
		batch_bytes: batchBytes,
		spin_ns:     C.uint64_t(o.SpinTime.Nanoseconds()),
		notif_limit: C.uint64_t(o.NotifQueue),
		notif_total: C.uint64_t(max(o.NotifMemory, o.NotifQueue)),

		inflight_ops: C.uint32_t(o.InflightOps),
	}
	c, err := C.gr_core_new(&cfg)
	if c == nil {
		return nil, fmt.Errorf("start the engine's thread and its descriptors (limits: ulimit -u, ulimit -n): %w", err)
	}
	return &Core{c}, nil
}

// Pointer is the gr_core for the shim.
func (k *Core) Pointer() unsafe.Pointer { return unsafe.Pointer(k.c) }

// Stop ends the thread. Implements gr_core_stop.
func (k *Core) Stop() { C.gr_core_stop(k.c) }

// DropRails forgets the rails so that they can be closed; after Stop and with every link freed.
func (k *Core) DropRails() { C.gr_core_drop_rails(k.c) }

// Free frees the core; nothing of it may be used any more.
func (k *Core) Free() { C.gr_core_free(k.c) }

// FlushBy makes call(arg), a function of C's, come before the application hears that a READ has ended or takes a notification. For good.
func (k *Core) FlushBy(call, arg unsafe.Pointer) error {
	if rc := C.gr_core_flush_by(k.c, (*[0]byte)(call), arg); rc != 0 {
		return syscall.Errno(-rc)
	}
	return nil
}

// AddRail hands a provider's gr_rail to the core and returns its index.
func (k *Core) AddRail(rail unsafe.Pointer) (int, error) {
	n := C.gr_core_add_rail(k.c, (*C.gr_rail)(rail))
	if n < 0 {
		return 0, syscall.Errno(-n)
	}
	return int(n), nil
}

// ReserveRail gives an index for a rail that SetRail adds later. Implements gr_core_reserve_rail.
func (k *Core) ReserveRail() (int, error) {
	n := C.gr_core_reserve_rail(k.c)
	if n < 0 {
		return 0, syscall.Errno(-n)
	}
	return int(n), nil
}

// SetRail hands a provider's gr_rail to the core, once for an index from ReserveRail. Implements gr_core_set_rail.
func (k *Core) SetRail(index int, rail unsafe.Pointer) error {
	if rc := C.gr_core_set_rail(k.c, C.int(index), (*C.gr_rail)(rail)); rc != 0 {
		return syscall.Errno(-rc)
	}
	return nil
}

// Key is one slot of a region: what a rail wants for it.
type Key struct {
	Key, Base uint64
	Desc      unsafe.Pointer
}

// Region is an entry of the region table, in C memory; it never moves.
type Region struct{ r *C.gr_region }

// Region gives entry idx, or an error when the table is full.
func (k *Core) Region(idx uint32) (Region, error) {
	r := C.gr_region_at(k.c, C.uint32_t(idx))
	if r == nil {
		return Region{}, fmt.Errorf("region table is full at %d entries or memory is exhausted", idx)
	}
	return Region{r}, nil
}

// Set fills the entry for a range; it is not live yet.
func (r Region) Set(addr, length uint64, slots int) {
	r.SetLive(false)
	r.r.addr, r.r.len = C.uint64_t(addr), C.uint64_t(length)
	keys := unsafe.Slice((*C.gr_rkey)(unsafe.Add(unsafe.Pointer(r.r), unsafe.Sizeof(*r.r))), slots)
	clear(keys)
}

// SetKey fills the slot of one rail.
func (r Region) SetKey(slot int, k Key) {
	p := (*C.gr_rkey)(unsafe.Add(unsafe.Pointer(r.r), unsafe.Sizeof(*r.r)+uintptr(slot)*unsafe.Sizeof(C.gr_rkey{})))
	p.key, p.base, p.desc = C.uint64_t(k.Key), C.uint64_t(k.Base), k.Desc
	p.ok = 1
}

// Live says whether operations may be posted on it.
func (r Region) Live() bool { return atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.r.live))) != 0 }

// SetLive opens or closes the region for posts.
func (r Region) SetLive(live bool) {
	v := C.int(0)
	if live {
		v = 1
	}
	C.gr_region_live(r.r, v)
}

// Now is CLOCK_MONOTONIC in nanoseconds, the clock of Xfer.LastProgress.
func Now() time.Duration { return time.Duration(C.gr_now_ns()) }

// Counters of the core, by name.
func (k *Core) Counters() map[string]uint64 {
	var v [C.GR_C_COUNT]C.uint64_t
	C.gr_counters(k.c, &v[0])
	names := [...]string{"work_requests", "completions", "completion_errors", "eagain", "write_bytes", "read_bytes", "transfers_done",
		"transfers_failed", "notifs_sent", "notifs_received", "notif_duplicates", "bad_messages", "replayed_parts",
		"thread_wakes", "thread_looks", "to_c_prep", "to_c_post", "reposts", "cross_prep", "cross_post", "cross_other"}
	m := make(map[string]uint64, len(names))
	for i, n := range names {
		m[n] = uint64(v[i])
	}
	return m
}
