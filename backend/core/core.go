package core

/*
#cgo CFLAGS: -std=gnu17 -O2 -Wall -Wextra -Werror
#cgo LDFLAGS: -lpthread
#include "gr_policy.h"
#include <stdlib.h>

// Finds up to n entries of the region table from one on, and returns their number.
static int regions_from(gr_core *core, uint32_t first, int n, gr_region **to)
{
    int i = 0;
    while (i < n && (to[i] = gr_region_at(core, first + (uint32_t)i)))
        i++;
    return i;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// ErrFull: a session's notification queue has reached its limit.
var ErrFull = errors.New("notification queue is full")

// Core is one engine's C core. Its methods are safe for concurrent use unless their comments say otherwise.
type Core struct{ c *C.gr_core }

// batchBytes is the size of a batch: what a link takes at a time from a shared transfer. At a transfer's end the links
// finish about one batch apart: 8 ms at 250 Mbit/s, 5 us at 400 Gbit/s.
const batchBytes = 256 << 10

// spreadMin is the least size of a transfer that several threads share, in bytes. On 16 cores 1 MiB takes one thread 151 us and four
// threads 171; 2 MiB take 367 and 272.
const spreadMin = 2 << 20

// Config is the configuration of a core.
type Config struct {
	Slots                int    // the most rails
	WindowMin, WindowMax uint64 // limits of a link's window, in bytes in flight
	SpinForPeers         bool   // also after it served a peer, not only after work of this engine
	NotifQueue           uint64 // limit of undelivered notification bytes of a peer
	NotifMemory          uint64 // and of all peers
}

// New makes a core and starts its first thread. Implements gr_core_new.
func New(o Config) (*Core, error) {
	cfg := C.gr_core_cfg{
		max_rails:   C.uint32_t(o.Slots),
		window_min:  C.uint64_t(o.WindowMin),
		window_max:  C.uint64_t(o.WindowMax),
		batch_bytes: batchBytes,
		spread_min:  spreadMin,
		notif_limit: C.uint64_t(o.NotifQueue),
		notif_total: C.uint64_t(max(o.NotifMemory, o.NotifQueue)),
	}
	if o.SpinForPeers {
		cfg.spin_for_peers = 1
	}
	c, err := C.gr_core_new(&cfg)
	if c == nil {
		return nil, fmt.Errorf("starting the progress thread or opening its descriptors failed; check ulimit -u and ulimit -n: %w", err)
	}
	return &Core{c}, nil
}

// Pointer returns the gr_core for the shim.
func (k *Core) Pointer() unsafe.Pointer { return unsafe.Pointer(k.c) }

// Stop ends the threads. Implements gr_core_stop.
func (k *Core) Stop() { C.gr_core_stop(k.c) }

// Rouse wakes the core's threads that sleep long because nothing happens; they sleep less from then on. For the engine's sweeper, until Free.
// It costs little if none sleeps long.
func (k *Core) Rouse() { C.gr_core_rouse(k.c) }

// DropRails removes all rails from the core, so that they can be closed. Only after Stop and after every link was freed.
func (k *Core) DropRails() { C.gr_core_drop_rails(k.c) }

// Free frees the core, only after Stop: a thread would use its memory. The core must not be used afterwards. Implements gr_core_free.
func (k *Core) Free() { C.gr_core_free(k.c) }

// FlushBy registers the C function call with arg. The call runs before the application learns that a READ has ended or takes a
// notification. Permanent.
func (k *Core) FlushBy(call, arg unsafe.Pointer) error {
	if rc := C.gr_core_flush_by(k.c, (*[0]byte)(call), arg); rc != 0 {
		return syscall.Errno(-rc)
	}
	return nil
}

// AddRail adds a provider's gr_rail to the core and returns its index.
func (k *Core) AddRail(rail unsafe.Pointer) (int, error) {
	n := C.gr_core_add_rail(k.c, (*C.gr_rail)(rail))
	if n < 0 {
		return 0, syscall.Errno(-n)
	}
	return int(n), nil
}

// ReserveRail reserves an index for a rail that SetRail adds later. Implements gr_core_reserve_rail.
func (k *Core) ReserveRail() (int, error) {
	n := C.gr_core_reserve_rail(k.c)
	if n < 0 {
		return 0, syscall.Errno(-n)
	}
	return int(n), nil
}

// SetRail adds a provider's gr_rail at an index from ReserveRail, once for each index. Implements gr_core_set_rail.
func (k *Core) SetRail(index int, rail unsafe.Pointer) error {
	if rc := C.gr_core_set_rail(k.c, C.int(index), (*C.gr_rail)(rail)); rc != 0 {
		return syscall.Errno(-rc)
	}
	return nil
}

// Key is one slot of a region: the registration on one rail.
type Key struct {
	Key, Base uint64
	Desc      unsafe.Pointer
}

// Region is an entry of the region table, in C memory. It never moves.
type Region struct{ r *C.gr_region }

// Region returns entry idx, or an error when the table is full or memory is exhausted.
func (k *Core) Region(idx uint32) (Region, error) {
	r := C.gr_region_at(k.c, C.uint32_t(idx))
	if r == nil {
		return Region{}, fmt.Errorf("region table: no entry %d: the table is full or memory is exhausted", idx)
	}
	return Region{r}, nil
}

// Regions appends the next entries of the table to the entries from 0 on: up to 64, one at least. Error: the table is full or memory is
// exhausted.
func (k *Core) Regions(all []Region) ([]Region, error) {
	var more [64]*C.gr_region
	n := C.regions_from(k.c, C.uint32_t(len(all)), C.int(len(more)), &more[0])
	if n == 0 {
		return all, fmt.Errorf("region table: no entry %d: the table is full or memory is exhausted", len(all))
	}
	for _, r := range more[:n] {
		all = append(all, Region{r})
	}
	return all, nil
}

// Set fills the entry for an address range and clears its keys. The region is not live afterwards.
func (r Region) Set(addr, length uint64, slots int) {
	r.SetLive(false)
	r.r.addr, r.r.len = C.uint64_t(addr), C.uint64_t(length)
	keys := unsafe.Slice((*C.gr_rail_key)(unsafe.Add(unsafe.Pointer(r.r), unsafe.Sizeof(*r.r))), slots)
	clear(keys)
}

// SetKey fills the slot of one rail.
func (r Region) SetKey(slot int, k Key) {
	p := (*C.gr_rail_key)(unsafe.Add(unsafe.Pointer(r.r), unsafe.Sizeof(*r.r)+uintptr(slot)*unsafe.Sizeof(C.gr_rail_key{})))
	p.key, p.base, p.desc = C.uint64_t(k.Key), C.uint64_t(k.Base), k.Desc
	p.ok = 1
}

// ClearKey empties the slot of one rail.
func (r Region) ClearKey(slot int) {
	p := (*C.gr_rail_key)(unsafe.Add(unsafe.Pointer(r.r), unsafe.Sizeof(*r.r)+uintptr(slot)*unsafe.Sizeof(C.gr_rail_key{})))
	p.ok = 0
}

// Key is the key in the slot of one rail; 0: none.
func (r Region) Key(slot int) uint64 {
	p := (*C.gr_rail_key)(unsafe.Add(unsafe.Pointer(r.r), unsafe.Sizeof(*r.r)+uintptr(slot)*unsafe.Sizeof(C.gr_rail_key{})))
	return uint64(p.key)
}

// Live reports whether operations may be posted on the region.
func (r Region) Live() bool { return atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.r.live))) != 0 }

// SetLive allows or forbids posts on the region.
func (r Region) SetLive(live bool) {
	v := uint32(0)
	if live {
		v = 1
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&r.r.live)), v)
}

// Now is CLOCK_MONOTONIC in nanoseconds, the clock of Xfer.LastProgress.
func Now() time.Duration { return time.Duration(C.gr_now_ns()) }

// Counters returns the counters of the core by name.
func (k *Core) Counters() map[string]uint64 {
	var v [C.GR_C_COUNT]C.uint64_t
	C.gr_counters(k.c, &v[0])
	names := [...]string{"work_requests", "completions", "completion_errors", "eagain", "write_bytes", "read_bytes", "transfers_done",
		"transfers_failed", "notifs_sent", "notifs_received", "notif_duplicates", "bad_messages", "credits_held", "replayed_batches",
		"thread_wakes", "thread_looks", "to_c_prep", "to_c_post", "reposts", "cross_prep", "cross_post", "cross_other"}
	m := make(map[string]uint64, len(names))
	for i, n := range names {
		m[n] = uint64(v[i])
	}
	m["replayed_parts"] = m["replayed_batches"] // the old name, in this release only
	return m
}
