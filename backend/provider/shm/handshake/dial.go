package handshake

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/provider/shm/ipc"
)

const (
	redialFirst = time.Millisecond
	redialMost  = 64 * time.Millisecond
	patience    = 5 * time.Second // with a peer that closes our connections
)

// Connect dials the peer's endpoint and goes on with that until it has been accepted. The name is of the abstract namespace. The error is an
// *ipc.Error: it is of no use to try again.
func (e *Endpoint) Connect(name []byte, token Token) error {
	e.mu.Lock()
	again, over := e.named, e.closed || e.err != nil
	e.named = true
	e.mu.Unlock()
	if again {
		return ipc.Fail("connect", unix.EISCONN)
	}
	if over {
		return e.Err()
	}
	d := dialer{e: e, name: name, token: token, pause: redialFirst}
	conn, err := d.dial()
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.err != nil {
		if conn != nil {
			conn.Close()
		}
		return e.err
	}
	e.out = conn
	e.tasks.Add(1)
	go d.run(conn)
	return nil
}

// dialer makes our connection to the peer.
type dialer struct {
	e       *Endpoint
	name    []byte
	token   Token
	next    time.Time // no connection before that
	pause   time.Duration
	refused time.Time // when the peer first closed one
}

// run goes on until the peer has accepted: one that is pressed for room lets go of connections whose token it has not seen.
func (d *dialer) run(conn *ipc.Conn) {
	defer d.e.tasks.Done()
	for !d.accepted(conn) {
		select {
		case <-d.e.ended:
			return
		case <-time.After(time.Until(d.next)):
		}
		select {
		case <-d.e.ended: // both
			return
		default:
		}
		if !d.refused.IsZero() && time.Since(d.refused) > patience {
			d.e.fail(ipc.Fail("greeting the peer's endpoint, which closes our connections", unix.ECONNREFUSED), false)
			return
		}
		var err error
		if conn, err = d.dial(); err != nil {
			d.e.fail(err, false)
			return
		}
		if !d.keep(conn) {
			return
		}
	}
}

// keep makes the connection one that Close ends.
func (d *dialer) keep(conn *ipc.Conn) bool {
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	if over := d.e.closed || d.e.err != nil; over {
		if conn != nil {
			conn.Close()
		}
		return false
	}
	d.e.out = conn
	return true
}

// accepted waits for the peer's answer. conn may be nil.
func (d *dialer) accepted(conn *ipc.Conn) bool {
	if conn == nil {
		return false
	}
	var b [1]byte
	if n, err := conn.Recv(b[:]); err != nil || n == 0 {
		d.keep(nil)
		conn.Close()
		if d.refused.IsZero() {
			d.refused = time.Now()
		}
		return false
	}
	d.e.dropSegment()
	sock, err := d.e.release(&d.e.out)
	if err != nil {
		d.e.fail(ipc.Fail("greeting the peer's endpoint", err), false)
		return true
	}
	d.e.owner.Accepted(sock)
	return true
}

// dial is one connection, with all that the peer wants of us, or nil: the peer has no room for it now, or has let it go. Who listens may be
// another by now: it is looked at before it is told anything.
func (d *dialer) dial() (*ipc.Conn, error) {
	d.next = time.Now().Add(d.pause)
	d.pause = min(2*d.pause, redialMost)
	conn, err := ipc.Dial(d.name)
	if err != nil {
		if ipc.Errno(err) == unix.EAGAIN {
			err = nil
		}
		return nil, err
	}
	if _, err := conn.CheckUser(); err != nil {
		conn.Close()
		return nil, ipc.Fail(ipc.Checking, err)
	}
	if err := d.sendHello(conn); err != nil {
		conn.Close()
		switch errno := ipc.Errno(err); errno {
		case unix.EAGAIN, unix.EPIPE, unix.ECONNRESET:
			return nil, nil
		default:
			return nil, ipc.Fail("greeting the peer's endpoint", errno)
		}
	}
	return conn, nil
}

func (d *dialer) sendHello(conn *ipc.Conn) error {
	h := hello{Magic: magic, Segment: uint32(d.e.l.sizes.Segment), Token: d.token}
	if err := conn.Send(h.encode()); err != nil {
		return err
	}
	return conn.Send(binary.NativeEndian.AppendUint32(nil, magic), d.e.rights...)
}
