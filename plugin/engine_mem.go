//go:build gorail_mem

package main

/*
#include <stdlib.h>
#include "mem_core.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"time"
	"unsafe"

	"gorail/backend/status"
)

// The in-memory engine: transfers between agents of one process, done when posted.

// Desc is gr_desc.
type Desc struct {
	Addr, Len, Dev uint64
	MD             unsafe.Pointer
}

var world = struct {
	sync.Mutex
	byBlob map[string]*memEngine
	next   uint64
}{byBlob: map[string]*memEngine{}}

type memEngine struct {
	mu    sync.Mutex
	name  string
	blob  string
	core  *C.gr_core
	peers map[string]string
	xfers map[uint64]*memXfer
	mems  map[uint64]Desc
}

type memXfer struct {
	op            int
	local, remote []Desc
	peer          string
	slot          unsafe.Pointer
}

func optionRows() []optionRow { return []optionRow{{"provider", "auto"}, {"devices", ""}} }

func createEngine(a createArgs) (created, error) {
	if a.Params["fail"] != "" {
		return created{}, status.Errorf(status.ErrBackend, "asked to fail")
	}
	world.Lock()
	defer world.Unlock()
	world.next++
	e := &memEngine{name: a.Agent, core: C.mem_core_new(), peers: map[string]string{}, xfers: map[uint64]*memXfer{}, mems: map[uint64]Desc{}}
	e.blob = fmt.Sprintf("GORAIL memory engine %020d %s", world.next, a.Agent)
	world.byBlob[e.blob] = e
	e.peers[a.Agent] = e.blob
	return created{engine: e, conn: []byte(e.blob), core: unsafe.Pointer(e.core)}, nil
}

func nextID() uint64 {
	world.Lock()
	defer world.Unlock()
	world.next++
	return world.next
}

func (e *memEngine) peer(name string) (*memEngine, error) {
	e.mu.Lock()
	blob, ok := e.peers[name]
	e.mu.Unlock()
	if !ok {
		return nil, status.Errorf(status.ErrNotFound, "peer %q was never loaded", name)
	}
	world.Lock()
	defer world.Unlock()
	p := world.byBlob[blob]
	if p == nil {
		return nil, status.Errorf(status.ErrRemoteDisconnect, "peer %q is gone", name)
	}
	return p, nil
}

func (e *memEngine) Close() error {
	world.Lock()
	defer world.Unlock()
	delete(world.byBlob, e.blob)
	for _, x := range e.xfers {
		C.free(x.slot)
	}
	C.mem_core_free(e.core)
	return nil
}

func (e *memEngine) Register(addr, length, dev uint64, mem int32, _ []byte) (uint64, error) {
	id := nextID()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mems[id] = Desc{Addr: addr, Len: length, Dev: dev}
	return id, nil
}

func (e *memEngine) RegionBlob(region uint64) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m, ok := e.mems[region]
	if !ok {
		return nil, status.Errorf(status.ErrNotFound, "region %d", region)
	}
	return fmt.Appendf(nil, "%x+%x", m.Addr, m.Len), nil
}

func (e *memEngine) Deregister(region uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.mems[region]; !ok {
		panic("deregistered twice")
	}
	delete(e.mems, region)
	return nil
}

func (e *memEngine) Known(addr, length, dev uint64, _ int32) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range e.mems {
		if m.Dev == dev && m.Addr <= addr && addr+length <= m.Addr+m.Len {
			return true, nil
		}
	}
	return false, nil
}

func (e *memEngine) LoadConn(peer string, blob []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.peers[peer] = string(blob)
	return nil
}

func (e *memEngine) LoadRemote(peer string, addr, length, dev uint64, _ int32, _ []byte) (uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.peers[peer]; !ok {
		return 0, status.Errorf(status.ErrNotFound, "peer %q was never loaded", peer)
	}
	return nextID(), nil
}

func (e *memEngine) UnloadRemote(uint64) error { return nil }

func (e *memEngine) Connect(peer string) error { _, err := e.peer(peer); return err }

func (e *memEngine) Disconnect(peer string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.peers, peer)
	return nil
}

func (e *memEngine) Prep(op int, local, remote []Desc, peer string) (uint64, unsafe.Pointer, error) {
	if len(local) != len(remote) || len(local) == 0 {
		return 0, nil, status.Errorf(status.ErrInvalidParam, "%d local and %d remote descriptors", len(local), len(remote))
	}
	x := &memXfer{op: op, local: append([]Desc(nil), local...), remote: append([]Desc(nil), remote...), peer: peer, slot: C.calloc(1, 64)}
	id := nextID()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.xfers[id] = x
	return id, x.slot, nil
}

func (e *memEngine) Post(xfer uint64, hasNotif bool, msg []byte) (int32, error) {
	e.mu.Lock()
	x := e.xfers[xfer]
	e.mu.Unlock()
	if x == nil {
		return 0, status.Errorf(status.ErrNotFound, "request %d", xfer)
	}
	p, err := e.peer(x.peer)
	if err != nil {
		return 0, err
	}
	for i := range x.local {
		l := unsafe.Slice((*byte)(ptr(x.local[i].Addr)), x.local[i].Len)
		r := unsafe.Slice((*byte)(ptr(x.remote[i].Addr)), x.remote[i].Len)
		if x.op == 0 {
			copy(l, r)
		} else {
			copy(r, l)
		}
	}
	if hasNotif {
		e.push(p, msg)
	}
	return 1, nil // the first check finds it done
}

func ptr(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

func (e *memEngine) push(p *memEngine, msg []byte) {
	C.mem_core_push(p.core, (*C.char)(unsafe.Pointer(unsafe.StringData(e.name))), C.uint64_t(len(e.name)),
		(*C.char)(unsafe.Pointer(unsafe.SliceData(msg))), C.uint64_t(len(msg)))
}

func (e *memEngine) Release(xfer uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.xfers[xfer]; x != nil {
		C.free(x.slot)
		delete(e.xfers, xfer)
	}
	return nil
}

func (e *memEngine) Estimate(uint64) (time.Duration, time.Duration, error) {
	return 0, 0, status.Errorf(status.ErrNotSupported, "nothing measured yet")
}

func (e *memEngine) Notify(peer string, msg []byte) error {
	p, err := e.peer(peer)
	if err == nil {
		e.push(p, msg)
	}
	return err
}
