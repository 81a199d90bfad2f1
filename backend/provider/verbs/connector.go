package verbs

/*
#include <stdlib.h>
#include "cm.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"gorail/backend/option"
	"gorail/backend/provider"
)

// connector makes the connections of an iWARP rail: one listener, and one goroutine that takes rdma_cm's events.
//
// Lock order: mu, then the rail's lock in C. Events are taken in and acknowledged under mu, and ids destroyed under it: so
// no event speaks of an id that is gone, and no destroying waits for an acknowledgement.
type connector struct {
	rail   *rail
	c      *C.vb_cm
	within time.Duration // a connection must come about
	f      *os.File      // the event channel
	done   chan struct{}

	mu       sync.Mutex
	byCookie map[uint64]*iwEndpoint
	byID     map[*C.struct_rdma_cm_id]*iwEndpoint
	orphans  int    // closed while rdma_connect is under way
	last     func() // called when there is none any more
}

// newConnector implements rdma_create_event_channel, rdma_bind_addr and rdma_listen.
func newConnector(r *rail, lib *cmLibrary, ports option.PortRange, within time.Duration) (*connector, error) {
	m := &connector{rail: r, within: within, done: make(chan struct{}), byCookie: map[uint64]*iwEndpoint{}, byID: map[*C.struct_rdma_cm_id]*iwEndpoint{}}
	ip := ipOf(r.entry.gid.addr)
	var step *C.char
	if rc := C.vb_cm_open(lib.c, &ip[0], C.uint16_t(ports.First), C.uint16_t(ports.Last), &m.c, &step); rc != 0 {
		err := r.error(provider.ErrUnusable, C.GoString(step)+" "+r.entry.gid.addr.String(), rc)
		if ports.First != 0 && syscall.Errno(-rc) == syscall.EADDRINUSE {
			err = fmt.Errorf("%w: every port of option data_port=%d-%d is in use there; give a wider range", err, ports.First, ports.Last)
		}
		return nil, err
	}
	fd, err := syscall.Dup(int(m.c.channel.fd)) // ours to close; non-blocking as the original is
	if err != nil {
		C.vb_cm_close(m.c)
		return nil, fmt.Errorf("%w: %s/%s: rdma_cm events: %w", provider.ErrUnusable, r.dev.Fabric, r.dev.Name, err)
	}
	syscall.CloseOnExec(fd)
	m.f = os.NewFile(uintptr(fd), r.dev.Name+" rdma_cm events")
	go m.loop()
	return m, nil
}

// loop takes events until the file is closed. Go's poller waits, no thread does.
func (m *connector) loop() {
	defer close(m.done)
	conn, err := m.f.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Read(func(uintptr) bool {
		for m.next() {
		}
		return false // until there is one
	})
}

// next takes in one event; false: there is none.
func (m *connector) next() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ev C.vb_cm_event
	if C.vb_cm_next(m.c, &ev) == 0 {
		return false
	}
	if ev.kind == C.VB_CM_REQUEST {
		m.asked(&ev)
		return true
	}
	e := m.byID[ev.id]
	if e == nil || e.state == iwFailed || e.state == iwClosed {
		return true
	}
	switch {
	case ev.kind == C.VB_CM_ADDR && e.state == iwDialing:
		if rc := C.vb_cm_route(m.c, e.id, C.int(m.within.Milliseconds())); rc != 0 {
			m.fail(e, syscall.Errno(-rc))
		}
	case ev.kind == C.VB_CM_ROUTE && e.state == iwDialing:
		e.calling = true
		go m.call(e, e.c.qp.qp_num)
	case ev.kind == C.VB_CM_UP && e.state == iwDialing:
		e.state = iwUp
		e.timer.Stop()
		if rc := C.vb_iw_up(e.c); rc != 0 {
			m.fail(e, syscall.Errno(-rc))
		}
	case ev.kind == C.VB_CM_UP && e.state == iwWaiting:
		e.state = iwUp // the peer's first message is still to come
	case ev.kind == C.VB_CM_FAILED:
		m.fail(e, syscall.Errno(ev.err))
	case ev.kind == C.VB_CM_LOST:
		m.fail(e, syscall.ECONNRESET)
	}
	return true
}

// data is what a request carries: whom it is for, and whom it is from.
func data(to, from uint64) (b [C.VB_CM_DATA]C.uint8_t) {
	var g [C.VB_CM_DATA]byte
	binary.BigEndian.PutUint64(g[:], to)
	binary.BigEndian.PutUint64(g[8:], from)
	for i, x := range g {
		b[i] = C.uint8_t(x)
	}
	return b
}

// call implements rdma_connect, which siw comes back from when TCP has connected or given up: after two minutes, maybe.
func (m *connector) call(e *iwEndpoint, qpn C.uint32_t) {
	b := data(e.peer.Cookie, e.addr.Cookie)
	own := m.rail.maxReads()
	rc := C.vb_cm_connect(m.c, e.id, qpn, C.uint8_t(e.addr.Reads), C.uint8_t(min(own, e.peer.Reads)), &b[0])
	m.mu.Lock()
	defer m.mu.Unlock()
	e.calling = false
	if e.state != iwClosed {
		if rc != 0 {
			m.fail(e, syscall.Errno(-rc))
		}
		return
	}
	C.vb_ep_close(m.rail.c, e.c)
	e.c = nil
	m.forget(e)
	if m.orphans--; m.orphans == 0 && m.last != nil {
		m.last()
	}
}

// asked deals with a request of a peer's.
func (m *connector) asked(ev *C.vb_cm_event) {
	var b [C.VB_CM_DATA]byte
	for i := range b {
		b[i] = byte(ev.data[i])
	}
	e := m.byCookie[binary.BigEndian.Uint64(b[:])]
	from := binary.BigEndian.Uint64(b[8:])
	switch {
	case ev.len == C.VB_CM_DATA && e != nil && e.state == iwIdle && e.request == nil:
		e.peer.Cookie = from
		e.request, e.reads = ev.id, uint8(ev.reads)
	case ev.len == C.VB_CM_DATA && e != nil && e.state == iwWaiting && e.id == nil && from == e.peer.Cookie:
		m.accept(e, ev.id, uint8(ev.reads))
	default:
		C.vb_cm_reject(m.c, ev.id)
	}
}

// accept implements rdma_accept. Receives are posted: the peer has our address since then.
func (m *connector) accept(e *iwEndpoint, id *C.struct_rdma_cm_id, reads uint8) {
	e.id = id
	m.byID[id] = e
	out := min(m.rail.maxReads(), e.peer.Reads, reads)
	if rc := C.vb_cm_accept(m.c, id, e.c.qp.qp_num, C.uint8_t(e.addr.Reads), C.uint8_t(out)); rc != 0 {
		m.fail(e, syscall.Errno(-rc))
	}
}

// late ends a connection that has not come about in time.
func (m *connector) late(e *iwEndpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.state == iwDialing || e.state == iwWaiting || e.state == iwUp && !e.connected() {
		m.fail(e, syscall.ETIMEDOUT)
	}
}

// fail ends everything that is posted; the endpoint waits for its Close.
func (m *connector) fail(e *iwEndpoint, errno syscall.Errno) {
	e.state = iwFailed
	e.timer.Stop()
	C.vb_iw_fail(e.c, C.int(errno))
}

// forget implements rdma_destroy_id for an endpoint's connection.
func (m *connector) forget(e *iwEndpoint) {
	if e.id != nil {
		delete(m.byID, e.id)
		C.vb_cm_destroy(m.c, e.id)
		e.id = nil
	}
}

// open is how many endpoints are open.
func (m *connector) open() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.byCookie)
}

// stop ends the goroutine and the listener; false: rdma_connect is still under way for endpoints that are closed, and rest is
// called, and the channel closed, when it has come back.
func (m *connector) stop(rest func()) bool {
	_ = m.f.Close()
	<-m.done
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.orphans == 0 {
		C.vb_cm_close(m.c)
		return true
	}
	m.last = func() {
		C.vb_cm_close(m.c)
		rest()
	}
	return false
}
