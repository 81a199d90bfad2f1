package fake

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
#include "fake.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"gorail/backend/provider"
)

// Fabric joins rails. Its methods, and those of its providers, rails and endpoints, are safe for concurrent use.
type Fabric struct{ c *C.fake_fabric }

// NewFabric makes a fabric. The seed determines the keys.
func NewFabric(seed uint64) *Fabric { return &Fabric{C.fake_fabric_new(C.uint64_t(seed))} }

// Close frees the fabric; EBUSY while rails are open.
func (f *Fabric) Close() error {
	if f.c == nil {
		return nil
	}
	if rc := C.fake_fabric_free(f.c); rc != 0 {
		return fmt.Errorf("fake: close with rails open: %w", syscall.Errno(-rc))
	}
	f.c = nil
	return nil
}

// Rail implements provider.Rail. A test controls its behaviour.
type Rail struct {
	dev  provider.Device
	caps Caps
	note []string
	c    *C.fake_rail

	mu         sync.Mutex
	closed     bool
	onRegister func(addr, length uint64) error
}

func openRail(f *Fabric, d provider.Device, l Link) (*Rail, error) {
	cfg := C.fake_config{
		ordered: flag(l.Caps.Ordered), chained: flag(l.Caps.Chained), delivery: flag(l.Caps.DeliveryComplete), virt_addr: flag(l.Caps.VirtAddr),
		prov_key: flag(l.Caps.ProviderKeys), local_desc: flag(l.Caps.LocalDesc), no_wait_fd: flag(l.NoWaitFD), shared: flag(l.Caps.SharedEndpoint),
		by_processor: flag(l.Caps.ByProcessor), secured: flag(l.Caps.Secured), keyed: flag(l.Caps.Keyed),
		gather:   flag(l.Caps.Ordered), // as for all fabrics that keep order
		key_size: C.uint32_t(l.Caps.KeySize), iov_limit: C.uint32_t(l.Caps.IOVLimit), tx_depth: C.uint32_t(l.Caps.TxDepth),
		rx_depth: C.uint32_t(l.Caps.RxDepth), msg_size: C.uint32_t(l.Caps.MaxSend), max_msg: C.uint64_t(l.Caps.MaxMsg),
		window_min: C.uint64_t(l.Caps.WindowMin), worker: C.uint8_t(l.Worker),
	}
	if l.Caps.KeySize < 1 || l.Caps.KeySize > 8 || l.Caps.IOVLimit < 1 || l.Caps.IOVLimit > C.GR_MAX_IOV {
		return nil, fmt.Errorf("%w: fake/%s: bad caps %+v", provider.ErrUnusable, d.Name, l.Caps)
	}
	if l.Caps.Secured && l.Caps.SharedEndpoint || l.Caps.Keyed && !l.Caps.Secured {
		return nil, fmt.Errorf("%w: fake/%s: Secured needs endpoints of one peer, and Keyed needs Secured", provider.ErrUnusable, d.Name)
	}
	c := C.fake_rail_open(f.c, &cfg)
	if c == nil {
		return nil, fmt.Errorf("%w: fake/%s: %w", provider.ErrUnusable, d.Name, syscall.ENOMEM)
	}
	return &Rail{dev: d, caps: l.Caps, note: l.Notes, c: c}, nil
}

func flag(b bool) C.uint8_t {
	if b {
		return 1
	}
	return 0
}

func (r *Rail) Device() provider.Device { return r.dev }
func (r *Rail) Caps() provider.Caps     { return r.caps.Caps }
func (r *Rail) Notes() []string         { return r.note }
func (r *Rail) Core() unsafe.Pointer    { return unsafe.Pointer(r.c) }

// Script replaces the rail's script. FailAt and EagainEvery count from the call on.
func (r *Rail) Script(s Script) {
	c := C.fake_script{
		delay: C.uint32_t(s.Delay), per_poll: C.uint32_t(s.PerPoll), seed: C.uint64_t(s.ReorderSeed),
		fail_at: C.uint64_t(s.FailAt), fail_errno: C.int32_t(s.FailErrno), eagain_every: C.uint32_t(s.EagainEvery),
		late_landing: flag(s.LateLanding), bad_key_cancels: flag(s.BadKeyCancels), fail_breaks: flag(s.FailBreaks),
		fail_sends: C.uint32_t(s.FailSends), fail_lands: flag(s.FailLands), recv_errno: C.int32_t(s.RecvErrno),
	}
	C.fake_rail_script(r.c, &c)
}

// Stall stops everything that goes over this rail, from either side: no operation is executed. Earlier completions can
// still be polled.
func (r *Rail) Stall() { C.fake_rail_stall(r.c, 1) }

// Release undoes Stall.
func (r *Rail) Release() { C.fake_rail_stall(r.c, 0) }

// Block makes posts of this rail wait inside the call, with the rail's lock held, until Block(false).
func (r *Rail) Block(on bool) { C.fake_rail_block(r.c, C.int(flag(on))) }

// Down takes the link down. Operations over it, posted before or later, from either side, complete with err and do not
// land.
func (r *Rail) Down(err syscall.Errno) { C.fake_rail_down(r.c, C.int(err)) }

// Up undoes Down.
func (r *Rail) Up() { C.fake_rail_down(r.c, 0) }

// OnRegister sets a function that is called without locks before each registration. Its error refuses the memory. nil:
// no function.
func (r *Rail) OnRegister(f func(addr, length uint64) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onRegister = f
}

// Counters returns the counters.
func (r *Rail) Counters() Counters {
	var c C.fake_counters
	C.fake_rail_counters(r.c, &c)
	return Counters{Posts: uint64(c.posts), Sends: uint64(c.sends), Recvs: uint64(c.recvs), Bytes: uint64(c.bytes),
		Polls: uint64(c.polls), EAGAIN: uint64(c.eagain), Failed: uint64(c.failed), Assists: uint64(c.assists)}
}

// Hold runs f while this thread holds the rail's lock, like a polling thread.
func (r *Rail) Hold(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	C.gr_rail_lock(&r.c.base)
	defer C.gr_rail_unlock(&r.c.base)
	f()
}

// Close frees the rail; EBUSY while endpoints or regions are open.
func (r *Rail) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if rc := C.fake_rail_close(r.c); rc != 0 {
		return fmt.Errorf("%w: fake/%s: close with endpoints or regions open: %w", provider.ErrUnusable, r.dev.Name,
			syscall.Errno(-rc))
	}
	r.closed = true
	return nil
}
