package rdmacm

import "syscall"

// Kind is the kind of an event.
//
//	we dial:  AddrResolved, RouteResolved, Established | Failed
//	a peer:   Request, Established | Failed
//	later:    Lost
type Kind int

// Kinds of events.
const (
	Other Kind = iota
	Request
	AddrResolved
	RouteResolved
	Established
	Failed
	Lost
)

// Event is an event of a connection.
type Event struct {
	Kind  Kind
	ID    ID            // of a Request: a new id, to be accepted or rejected
	Err   syscall.Errno // of Failed
	Reads uint8         // of a Request: READs that its sender answers at a time
	Data  []byte        // of a Request: the sender's private data; some transports pad it
}

// Next returns the next event, acknowledged; false: none is pending. Implements rdma_get_cm_event and
// rdma_ack_cm_event.
func (m *Listener) Next() (Event, bool) {
	e, ok := m.lib.c.next(m.ch)
	if !ok {
		return Event{}, false
	}
	ev := Event{Kind: e.classify(), ID: e.id, Reads: e.reads, Data: e.data}
	if ev.Kind == Failed {
		ev.Err = e.reason()
	}
	return ev, true
}

// rawEvent holds the contents of an rdma_cm_event.
type rawEvent struct {
	kind, status int
	id           ID
	reads        uint8
	data         []byte
}

func (e rawEvent) classify() Kind {
	switch e.kind {
	case eventConnectRequest:
		return Request
	case eventAddrResolved:
		return AddrResolved
	case eventRouteResolved:
		return RouteResolved
	case eventEstablished:
		return Established
	case eventAddrError, eventRouteError, eventConnectError, eventUnreachable, eventRejected:
		return Failed
	case eventDisconnected, eventDeviceRemoval:
		return Lost
	}
	return Other
}

// reason returns why a connection failed. The status is a negative errno of the kernel, or a fabric's own reason for a
// rejection.
func (e rawEvent) reason() syscall.Errno {
	status := syscall.Errno(-e.status)
	switch {
	case e.kind == eventRejected || status == syscall.ECONNRESET:
		return syscall.ECONNREFUSED
	case e.status < 0 && e.status > -4096:
		return status
	case e.kind == eventAddrError || e.kind == eventRouteError:
		return syscall.EHOSTUNREACH
	}
	return syscall.ETIMEDOUT
}
