package shm

/*
#include <stdlib.h>
#include "local.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"gorail/backend/provider"
	"gorail/backend/provider/vram"
)

// rail implements provider.Rail and provider.Prover: this process's table of regions and its threads.
type rail struct {
	dev provider.Device
	c   *C.lc_rail

	gpus *vram.GPUs

	mu     sync.Mutex
	closed bool
	door   *listener
	known  map[int]bool // GPUs that were looked at
	news   []string
}

var (
	_ provider.Prover = (*rail)(nil)
	_ provider.VRAM   = (*rail)(nil)
	_ provider.Teller = (*rail)(nil)
	_ provider.Helper = (*rail)(nil)
)

func (r *rail) Device() provider.Device { return r.dev }
func (r *rail) Core() unsafe.Pointer    { return unsafe.Pointer(r.c) }
func (r *rail) Notes() []string         { return nil }

func (r *rail) Caps() provider.Caps {
	b := &r.c.base
	return provider.Caps{DeliveryComplete: true, VirtAddr: true, ProviderKeys: true, KeySize: 8, Bulk: true, CanFence: true, Descriptors: 4, IOVLimit: int(b.iov_limit),
		TxDepth: int(b.tx_depth), RxDepth: int(b.rx_depth), MaxMsg: uint64(b.max_msg), Whole: C.LC_ALONE, MaxSend: uint64(b.msg_size),
		WindowMin: uint64(b.window_min)}
}

func (r *rail) error(phase error, what string, rc C.int) error {
	hint := ""
	switch -rc {
	case C.int(syscall.EMFILE):
		hint = " (each peer takes 4 file descriptors: ulimit -n)"
	case C.int(syscall.ENOSPC):
		hint = fmt.Sprintf(" (%d regions at most)", C.LC_REGIONS)
	case C.int(syscall.EACCES), C.int(syscall.EOVERFLOW), C.int(syscall.ENOTSUP), C.int(syscall.EXDEV):
		hint = why(syscall.Errno(-rc))
	case C.int(syscall.ETIMEDOUT):
		hint = late(uint64(C.lc_late(r.c)))
	}
	return fmt.Errorf("%w: %s: %s: %w%s", phase, r.dev.Name, what, syscall.Errno(-rc), hint)
}

// proofLen is that of the name of our socket, of an address, and of the bytes there.
const (
	nameLen  = 1 + len(C.lc_proof{}.name)
	proofLen = nameLen + 8 + C.LC_TOKEN
)

// Proof implements provider.Prover.
func (r *rail) Proof() []byte {
	p := &r.c.proof
	b := append([]byte{byte(p.name_len)}, C.GoBytes(unsafe.Pointer(&p.name), C.int(len(p.name)))...)
	b = binary.BigEndian.AppendUint64(b, uint64(p.at))
	return append(b, C.GoBytes(unsafe.Pointer(&p.bytes), C.LC_TOKEN)...)
}

// Reach implements provider.Prover: the kernel says which process listens at the socket that the proof names, and process_vm_readv of a few
// bytes shows that we may read it. The error says what forbids it and what would help.
func (r *rail) Reach(proof []byte) error {
	if len(proof) != proofLen {
		return fmt.Errorf("%w: a proof of %d bytes", provider.ErrBadAddress, len(proof))
	}
	p := C.lc_proof{name_len: C.uint8_t(proof[0]), at: C.uint64_t(binary.BigEndian.Uint64(proof[nameLen:]))}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&p.name)), len(p.name)), proof[1:])
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&p.bytes)), C.LC_TOKEN), proof[nameLen+8:])
	if !abstract(int(p.name_len), proof[1:nameLen]) {
		return fmt.Errorf("%w: a proof that names no socket: %x", provider.ErrBadAddress, proof[:nameLen])
	}
	var pid C.pid_t
	var step *C.char
	rc := C.lc_reach(&p, &pid, &step)
	if rc == 0 {
		return nil
	}
	what := C.GoString(step)
	if pid != 0 {
		what = fmt.Sprintf("%s, process %d", what, int(pid))
	}
	return fmt.Errorf("%s: %w%s", what, syscall.Errno(-rc), why(syscall.Errno(-rc)))
}

// Register enters the range in the table; nothing is pinned, the memory need not be mapped yet. key is ignored. Implements no call.
func (r *rail) Register(addr, length, _ uint64) (provider.MR, error) {
	if length == 0 || addr+length < addr {
		return nil, fmt.Errorf("%w: %s: range %#x + %d", provider.ErrRegister, r.dev.Name, addr, length)
	}
	var key C.uint64_t
	if rc := C.lc_mr_open(r.c, C.uint64_t(addr), C.uint64_t(length), nil, nil, &key); rc != 0 {
		return nil, r.error(provider.ErrRegister, "register", rc)
	}
	return &region{rail: r, key: uint64(key), base: addr}, nil
}

// Close ends the threads. With endpoints or regions open it fails with EBUSY and changes nothing; a second Close does nothing.
func (r *rail) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.door.close()
	if rc := C.lc_rail_close(r.c); rc != 0 {
		if door, err := listen(r.c); err == nil {
			r.door = door
		}
		return r.error(provider.ErrUnusable, "close", rc)
	}
	r.closed = true
	return r.gpus.Close()
}

// region implements provider.MR: an entry of the table.
type region struct {
	rail      *rail
	key, base uint64
	vram      *C.lc_vram // of memory of a GPU; C's, freed by Close
	mem       vram.Memory

	mu     sync.Mutex
	closed bool
}

func (m *region) Key() uint64          { return m.key }
func (m *region) Base() uint64         { return m.base }
func (m *region) Desc() unsafe.Pointer { return unsafe.Pointer(m.vram) }

// Close takes the entry out and waits until nobody copies to or from the range any more, a second at most: the error then names
// the process that is in the middle of a copy. The region is closed in any case.
func (m *region) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	defer C.free(unsafe.Pointer(m.vram))
	if rc := C.lc_mr_close(m.rail.c, C.uint64_t(m.key)); rc != 0 {
		return m.rail.error(provider.ErrRegister, "deregister", rc)
	}
	return nil
}

// Helped implements provider.Helper.
func (r *rail) Helped() (forPeers, byPeers uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, 0
	}
	var f, b C.uint64_t
	C.lc_helped(r.c, &f, &b)
	return uint64(f), uint64(b)
}
