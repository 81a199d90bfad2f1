package ipc

import (
	"bytes"
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

const (
	redialFirst  = time.Millisecond
	redialMost   = 64 * time.Millisecond
	refusalLimit = 5 * time.Second // for a peer that keeps closing our connections
)

// Connect dials the peer's endpoint and repeats the dial until the peer accepts. The error is an *Error: another
// Connect would fail, too.
func (e *Handshake) Connect(to *Place, token Token) error {
	e.mu.Lock()
	again, over := e.connecting, e.closed || e.err != nil
	e.connecting = true
	e.mu.Unlock()
	if again {
		return Fail("connect", unix.EISCONN)
	}
	if over {
		return e.Err()
	}
	d := dialer{e: e, to: to, token: token, pause: redialFirst}
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
	e       *Handshake
	to      *Place
	token   Token
	next    time.Time // time of the next dial at the earliest
	pause   time.Duration
	refused time.Time // when the peer first closed a connection
}

// run dials until the peer accepts. A peer that is short of room closes connections before it has read their token.
func (d *dialer) run(conn *Conn) {
	defer d.e.tasks.Done()
	for !d.accepted(conn) {
		select {
		case <-d.e.ended:
			return
		case <-time.After(time.Until(d.next)):
		}
		select {
		case <-d.e.ended: // select may choose either case when both are ready
			return
		default:
		}
		if !d.refused.IsZero() && time.Since(d.refused) > refusalLimit {
			d.e.fail(Fail("connect to the peer's endpoint, which keeps closing our connections", unix.ECONNREFUSED), false)
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

// keep stores the connection so that Close can end its wait. False: the endpoint has ended.
func (d *dialer) keep(conn *Conn) bool {
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
func (d *dialer) accepted(conn *Conn) bool {
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
	if err := d.sendRights(conn); err != nil {
		d.e.fail(Fail("send descriptors to the peer's endpoint", err), false)
		return true
	}
	d.e.dropSegment()
	sock, err := d.e.release(&d.e.out)
	if err != nil {
		d.e.fail(Fail("keep the socket of the accepted connection", err), false)
		return true
	}
	d.e.owner.Accepted(sock, b[0] == helloFollows && bytes.Compare(d.e.token[:], d.token[:]) > 0)
	return true
}

// sendRights sends our descriptors. If the peer has hung up, the socket tells its owner.
func (d *dialer) sendRights(conn *Conn) error {
	err := conn.Send(binary.NativeEndian.AppendUint32(nil, helloMagic), d.e.rights...)
	if errno := Errno(err); err != nil && errno != unix.EPIPE && errno != unix.ECONNRESET {
		return errno
	}
	return nil
}

// dial makes one connection and sends the hello. It returns nil without an error if the peer has no room
// now or closes the connection. It checks the listener's user first, because another process may have the
// abstract name by now.
func (d *dialer) dial() (*Conn, error) {
	d.next = time.Now().Add(d.pause)
	d.pause = min(2*d.pause, redialMost)
	conn, err := Dial(d.to, d.e.l.host.Folder)
	if err != nil {
		if Errno(err) == unix.EAGAIN {
			err = nil
		}
		return nil, err
	}
	if _, err := conn.CheckUser(d.e.l.host.Users); err != nil {
		conn.Drop()
		return nil, Fail(Checking, err)
	}
	own := d.e.l.Place()
	h := hello{Magic: helloMagic, Segment: uint32(d.e.l.sizes.Segment), Token: d.token, NetNS: own.NetNS, PidNS: own.PidNS}
	if err := conn.Send(h.encode()); err != nil {
		conn.Close()
		switch errno := Errno(err); errno {
		case unix.EAGAIN, unix.EPIPE, unix.ECONNRESET:
			return nil, nil
		default:
			return nil, Fail("send hello to the peer's endpoint", errno)
		}
	}
	return conn, nil
}
