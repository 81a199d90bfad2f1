package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"gorail/backend/limits"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/verbs/rdmacm"
)

// connector makes the connections of an iWARP rail. It has one listener and one goroutine that handles rdma_cm's
// events.
//
// Lock order: mu, then the rail's lock in C. Events are read and acknowledged under mu, and ids are destroyed under mu.
// So no event names a destroyed id, and rdma_destroy_id never waits for an acknowledgement.
type connector struct {
	rail   *rail
	cm     *rdmacm.Listener
	within time.Duration // time limit for a connection
	f      *os.File      // the event channel
	done   chan struct{}

	mu            sync.Mutex
	byCookie      map[uint64]*iwEndpoint
	byID          map[rdmacm.ID]*iwEndpoint
	orphans       int    // endpoints closed while rdma_connect is still running
	onOrphansGone func() // called when orphans reaches 0
	rejected      uint64 // connection requests that no endpoint waits for
}

// newConnector implements rdma_create_event_channel, rdma_bind_addr and rdma_listen.
func newConnector(r *rail, lib *rdmacm.Library, ports option.PortRange, within time.Duration) (*connector, error) {
	m := &connector{rail: r, within: within, done: make(chan struct{}), byCookie: map[uint64]*iwEndpoint{}, byID: map[rdmacm.ID]*iwEndpoint{}}
	cm, err := lib.Listen(r.entry.gid.addr, ports.First, ports.Last)
	if err != nil {
		err = r.error(provider.ErrUnusable, err, " "+r.entry.gid.addr.String())
		if ports.First != 0 && errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w: every port of option data_port=%d-%d is in use on this address; give a wider range", err, ports.First, ports.Last)
		}
		return nil, err
	}
	m.cm = cm
	fd, err := syscall.Dup(cm.FD()) // owned by the connector; non-blocking like the original
	if err != nil {
		m.cm.Close()
		return nil, fmt.Errorf("%w: %s/%s: rdma_cm events: %w", provider.ErrUnusable, r.dev.Fabric, r.dev.Name, err)
	}
	syscall.CloseOnExec(fd)
	m.f = os.NewFile(uintptr(fd), r.dev.Name+" rdma_cm events")
	go m.loop()
	return m, nil
}

// loop handles events until the file is closed. Go's poller waits for events, so no thread blocks.
func (m *connector) loop() {
	defer close(m.done)
	conn, err := m.f.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Read(func(uintptr) bool {
		for m.next() {
		}
		return false // wait for the next event
	})
}

// next handles one event; false: none was pending.
func (m *connector) next() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	ev, ok := m.cm.Next()
	if !ok {
		return false
	}
	if ev.Kind == rdmacm.Request {
		m.handleRequest(ev)
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
		e.connecting = true
		go m.connect(e, e.id)
	case ev.Kind == rdmacm.Established && e.state == iwDialing:
		e.state = iwUp
		e.timer.Stop()
		if err := e.qp.c.SendFirst(); err != nil {
			m.fail(e, clib.As(err).Errno)
		}
	case ev.Kind == rdmacm.Established && e.state == iwWaiting:
		e.state = iwUp // the peer's first message is still missing
	case ev.Kind == rdmacm.Failed:
		m.fail(e, ev.Err)
	case ev.Kind == rdmacm.Lost:
		m.fail(e, syscall.ECONNRESET)
	}
	return true
}

// requestLen is the size of the private data of a connection request, in bytes.
const requestLen = 16

// privateData encodes the private data of a connection request: the receiver's cookie and the sender's cookie.
func privateData(to, from uint64) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, requestLen), to)
	return binary.BigEndian.AppendUint64(b, from)
}

// connect implements rdma_connect. On siw the call blocks until TCP has connected or given up, which may take two minutes.
func (m *connector) connect(e *iwEndpoint, id rdmacm.ID) {
	err := m.cm.Connect(id, rdmacm.Param{QPN: e.qp.num, In: e.addr.Reads, Out: min(m.rail.readsOut(), e.peer.Reads)}, privateData(e.peer.Cookie, e.addr.Cookie))
	m.mu.Lock()
	defer m.mu.Unlock()
	e.connecting = false
	if e.state != iwClosed {
		if err != nil {
			m.fail(e, clib.As(err).Errno)
		}
		return
	}
	_ = e.qp.close()
	m.destroyID(e)
	if m.orphans--; m.orphans == 0 && m.onOrphansGone != nil {
		m.onOrphansGone()
	}
}

// handleRequest handles a peer's connection request.
func (m *connector) handleRequest(ev rdmacm.Event) {
	var e *iwEndpoint
	var from uint64
	if len(ev.Data) >= requestLen {
		e = m.byCookie[binary.BigEndian.Uint64(ev.Data)]
		from = binary.BigEndian.Uint64(ev.Data[8:])
	}
	switch {
	case e != nil && e.state == iwIdle && e.request == nil:
		e.peer.Cookie = from
		e.request, e.reads = ev.ID, ev.Reads //limit:iwarp_requests
	case e != nil && e.state == iwWaiting && e.id == nil && from == e.peer.Cookie:
		m.accept(e, ev.ID, ev.Reads)
	default:
		m.rejected++
		m.cm.Reject(ev.ID)
	}
}

// accept implements rdma_accept. Receives are already posted: they are posted before the peer gets our address.
func (m *connector) accept(e *iwEndpoint, id rdmacm.ID, reads uint8) {
	e.id = id
	m.byID[id] = e
	out := min(m.rail.readsOut(), e.peer.Reads, reads)
	if err := m.cm.Accept(id, rdmacm.Param{QPN: e.qp.num, In: e.addr.Reads, Out: out}); err != nil {
		m.fail(e, clib.As(err).Errno)
	}
}

// timedOut fails a connection that was not established in time.
func (m *connector) timedOut(e *iwEndpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.state == iwDialing || e.state == iwWaiting || e.state == iwUp && !e.connected() {
		m.fail(e, syscall.ETIMEDOUT)
	}
}

// fail ends all posted operations. The endpoint stays open until its Close.
func (m *connector) fail(e *iwEndpoint, errno syscall.Errno) {
	e.state = iwFailed
	e.timer.Stop()
	e.qp.c.Fail(errno)
}

// destroyID implements rdma_destroy_id for an endpoint's connection.
func (m *connector) destroyID(e *iwEndpoint) {
	if e.id != nil {
		delete(m.byID, e.id)
		m.cm.Destroy(e.id)
		e.id = nil
	}
}

// open returns the number of open endpoints.
func (m *connector) open() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.byCookie)
}

// stop ends the goroutine and the listener. It returns false if rdma_connect is still running for closed endpoints. The
// channel is then closed and onStopped called, when the last of these calls has returned.
func (m *connector) stop(onStopped func()) bool {
	_ = m.f.Close()
	<-m.done
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.orphans == 0 {
		m.cm.Close()
		return true
	}
	m.onOrphansGone = func() {
		m.cm.Close()
		onStopped()
	}
	return false
}

// limited returns how often requests were rejected.
func (m *connector) limited() map[limits.Limit]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return map[limits.Limit]uint64{limits.IWarpRequests: m.rejected}
}
