package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/verbs/rdmacm"
)

// connector makes the connections of an iWARP rail: one listener, and one goroutine that takes rdma_cm's events.
//
// Lock order: mu, then the rail's lock in C. Events are taken in and acknowledged under mu, and ids destroyed under it: so
// no event speaks of an id that is gone, and no destroying waits for an acknowledgement.
type connector struct {
	rail   *rail
	cm     *rdmacm.Listener
	within time.Duration // a connection must come about
	f      *os.File      // the event channel
	done   chan struct{}

	mu       sync.Mutex
	byCookie map[uint64]*iwEndpoint
	byID     map[rdmacm.ID]*iwEndpoint
	orphans  int    // closed while rdma_connect is under way
	last     func() // called when there is none any more
}

// newConnector implements rdma_create_event_channel, rdma_bind_addr and rdma_listen.
func newConnector(r *rail, lib *rdmacm.Library, ports option.PortRange, within time.Duration) (*connector, error) {
	m := &connector{rail: r, within: within, done: make(chan struct{}), byCookie: map[uint64]*iwEndpoint{}, byID: map[rdmacm.ID]*iwEndpoint{}}
	cm, err := lib.Listen(r.entry.gid.addr, ports.First, ports.Last)
	if err != nil {
		err = r.error(provider.ErrUnusable, err, " "+r.entry.gid.addr.String())
		if ports.First != 0 && errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w: every port of option data_port=%d-%d is in use there; give a wider range", err, ports.First, ports.Last)
		}
		return nil, err
	}
	m.cm = cm
	fd, err := syscall.Dup(cm.FD()) // ours to close; non-blocking as the original is
	if err != nil {
		m.cm.Close()
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
	ev, ok := m.cm.Next()
	if !ok {
		return false
	}
	if ev.Kind == rdmacm.Request {
		m.asked(ev)
		return true
	}
	e := m.byID[ev.ID]
	if e == nil || e.state == iwFailed || e.state == iwClosed {
		return true
	}
	switch {
	case ev.Kind == rdmacm.AddrResolved && e.state == iwDialing:
		if err := m.cm.Route(e.id, m.within); err != nil {
			m.fail(e, clib.As(err).Errno)
		}
	case ev.Kind == rdmacm.RouteResolved && e.state == iwDialing:
		e.calling = true
		go m.call(e, e.id)
	case ev.Kind == rdmacm.Established && e.state == iwDialing:
		e.state = iwUp
		e.timer.Stop()
		if err := e.qp.c.SendFirst(); err != nil {
			m.fail(e, clib.As(err).Errno)
		}
	case ev.Kind == rdmacm.Established && e.state == iwWaiting:
		e.state = iwUp // the peer's first message is still to come
	case ev.Kind == rdmacm.Failed:
		m.fail(e, ev.Err)
	case ev.Kind == rdmacm.Lost:
		m.fail(e, syscall.ECONNRESET)
	}
	return true
}

// requestLen is how many bytes a request carries.
const requestLen = 16

// data is what a request carries: whom it is for, and whom it is from.
func data(to, from uint64) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, requestLen), to)
	return binary.BigEndian.AppendUint64(b, from)
}

// call implements rdma_connect, which siw comes back from when TCP has connected or given up: after two minutes, maybe.
func (m *connector) call(e *iwEndpoint, id rdmacm.ID) {
	err := m.cm.Connect(id, rdmacm.Param{QPN: e.qp.num, In: e.addr.Reads, Out: min(m.rail.readsOut(), e.peer.Reads)}, data(e.peer.Cookie, e.addr.Cookie))
	m.mu.Lock()
	defer m.mu.Unlock()
	e.calling = false
	if e.state != iwClosed {
		if err != nil {
			m.fail(e, clib.As(err).Errno)
		}
		return
	}
	_ = e.qp.close()
	m.forget(e)
	if m.orphans--; m.orphans == 0 && m.last != nil {
		m.last()
	}
}

// asked deals with a request of a peer's.
func (m *connector) asked(ev rdmacm.Event) {
	var e *iwEndpoint
	var from uint64
	if len(ev.Data) >= requestLen {
		e = m.byCookie[binary.BigEndian.Uint64(ev.Data)]
		from = binary.BigEndian.Uint64(ev.Data[8:])
	}
	switch {
	case e != nil && e.state == iwIdle && e.request == nil:
		e.peer.Cookie = from
		e.request, e.reads = ev.ID, ev.Reads
	case e != nil && e.state == iwWaiting && e.id == nil && from == e.peer.Cookie:
		m.accept(e, ev.ID, ev.Reads)
	default:
		m.cm.Reject(ev.ID)
	}
}

// accept implements rdma_accept. Receives are posted: the peer has our address since then.
func (m *connector) accept(e *iwEndpoint, id rdmacm.ID, reads uint8) {
	e.id = id
	m.byID[id] = e
	out := min(m.rail.readsOut(), e.peer.Reads, reads)
	if err := m.cm.Accept(id, rdmacm.Param{QPN: e.qp.num, In: e.addr.Reads, Out: out}); err != nil {
		m.fail(e, clib.As(err).Errno)
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
	e.qp.c.Fail(errno)
}

// forget implements rdma_destroy_id for an endpoint's connection.
func (m *connector) forget(e *iwEndpoint) {
	if e.id != nil {
		delete(m.byID, e.id)
		m.cm.Destroy(e.id)
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
		m.cm.Close()
		return true
	}
	m.last = func() {
		m.cm.Close()
		rest()
	}
	return false
}
