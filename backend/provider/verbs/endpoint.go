package verbs

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/verbs/ibverbs"
)

// endpoint implements provider.Endpoint: a queue pair.
type endpoint struct {
	addr     address
	gidIndex int // source of the route; -1: no GRH, within the subnet
	core     unsafe.Pointer

	mu        sync.Mutex // guards the methods of qp, and connected
	qp        *queuePair
	connected bool
}

// OpenEndpoint implements ibv_create_qp and the transition to INIT. The error wraps provider.ErrEndpoint.
func (r *rail) OpenEndpoint() (provider.Endpoint, error) {
	g, err := r.source()
	if err != nil {
		return nil, fmt.Errorf("%w: %s/%s: %w", provider.ErrEndpoint, r.dev.Fabric, r.dev.Name, err)
	}
	qp, err := r.openQP()
	if err != nil {
		return nil, r.openError(err)
	}
	e := &endpoint{qp: qp, gidIndex: r.ibGID, core: qp.c.Core(), addr: address{QPN: qp.num, PSN: qp.psn, LID: qp.lid, MTU: uint16(qp.mtu),
		Ethernet: r.ethernet, Reads: r.readsIn(), GID: g.addr.As16()}}
	if r.ethernet {
		e.gidIndex = g.index
	}
	return e, nil
}

func (e *endpoint) Addr() []byte         { return e.addr.encode() }
func (e *endpoint) Core() unsafe.Pointer { return e.core }

// Connect implements the transitions to RTR and RTS. On RoCE the kernel resolves the route to the peer's address, which
// may take a second. No lock of the rail is held meanwhile. The address comes unverified from the peer. The error wraps
// provider.ErrBadAddress.
func (e *endpoint) Connect(peer []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	r, d := e.qp.rail, e.qp.rail.dev
	if e.qp.c == nil {
		return fmt.Errorf("%w: %s/%s: endpoint is closed", provider.ErrEndpoint, d.Fabric, d.Name)
	}
	a, ok := decodeAddress(peer)
	if !ok || a.Ethernet != e.addr.Ethernet {
		return fmt.Errorf("%w: %s/%s: %x: %w", provider.ErrBadAddress, d.Fabric, d.Name, peer, errAddress)
	}
	err := error(errConnected)
	if !e.connected {
		err = e.qp.connect(a, e.addr.GID, e.gidIndex)
	}
	if err != nil {
		return r.error(provider.ErrBadAddress, err, " to "+a.port())
	}
	e.connected = true
	return nil
}

// Close implements ibv_modify_qp to ERR and ibv_destroy_qp. The peer's access ends. poll reports posted operations as
// ECANCELED unless they had completed before. A second Close does nothing.
func (e *endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.qp.c == nil {
		return nil
	}
	if err := e.qp.close(); err != nil {
		return e.qp.rail.error(provider.ErrEndpoint, err, "")
	}
	return nil
}

var errAddress = errors.New("not an address of an InfiniBand or RoCE endpoint")

const (
	inlineAsked = 64   // bytes: a header and a short notification
	inlineMax   = 1024 // a larger reported value is not credible
)

// queuePair is an endpoint's queue pair.
//
//	INIT -> RTR -> RTS   connect
//	any  -> ERR          close
type queuePair struct {
	rail     *rail
	c        *ibverbs.QP // nil when closed
	num, psn uint32
	lid      uint16
	mtu      int // bytes
}

// openQP implements ibv_create_qp and the transition to INIT.
func (r *rail) openQP() (q *queuePair, err error) {
	q = &queuePair{rail: r, psn: randomPSN()}
	if q.c, err = r.c.NewQP(); err != nil {
		return nil, err
	}
	if err = q.create(); err == nil {
		var p ibverbs.PortAttr
		if p, err = r.lib.QueryPort(r.ctx, r.entry.port.number); err == nil { // a new subnet manager may have assigned another LID
			q.lid, q.mtu = p.LID, p.MTU
			err = q.c.Enter()
		}
	}
	if err != nil {
		q.c.Discard()
		return nil, err
	}
	r.endpoints.Add(1)
	return q, nil
}

// create uses the limits that the queue pair reports, within what was asked for. A driver without inline data (mana, vmw_pvrdma) returns our
// requested value and ignores IBV_SEND_INLINE. So every request has a key, and its buffer stays unchanged until the
// request completes.
func (q *queuePair) create() error {
	r := q.rail
	want := ibverbs.Cap{Send: atMost(r.attr.MaxQPWR, ibverbs.SendDepth), Recv: atMost(r.attr.MaxQPWR, ibverbs.RecvDepth), Inline: inlineAsked}
	if err := q.c.Reserve(want); err != nil {
		return err
	}
	has, err := q.c.Create(want)
	if errors.Is(err, syscall.EINVAL) { // the device has no inline data
		want.Inline = 0
		has, err = q.c.Create(want)
	}
	if err != nil {
		return err
	}
	if has.Inline > inlineMax {
		has.Inline = want.Inline
	}
	has.Send, has.Recv = atMost(int(has.Send), want.Send), atMost(int(has.Recv), want.Recv)
	q.c.SetCap(has)
	q.num = q.c.Num()
	return q.c.ToInit(r.entry.port.number, uint16(r.opt.PKeyIndex))
}

// randomPSN returns a random first packet sequence number. RoCE has no authentication: an attacker who guesses the PSN,
// the queue pair number and a key can forge requests.
func randomPSN() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // rand.Read never fails
	return binary.NativeEndian.Uint32(b[:]) & 0xffffff
}

// connect implements the transitions to RTR and RTS. It runs without the rail's lock: nothing is posted yet, and the
// kernel may first have to resolve a route.
func (q *queuePair) connect(peer address, own [16]byte, gidIndex int) error {
	r, opt := q.rail, &q.rail.opt
	to := ibverbs.Route{Port: r.entry.port.number, LID: peer.LID, SL: uint8(opt.ServiceLevel), TC: uint8(opt.TrafficClass), GIDIndex: gidIndex, GID: peer.GID}
	err := q.c.ToRTR(to, peer.QPN, peer.PSN, min(int(peer.MTU), q.mtu), r.readsIn())
	if r.ethernet {
		if gone := r.sourceIs(gidIndex, own); gone != nil {
			return gone
		}
	}
	if err != nil {
		return err
	}
	try := ibverbs.Retries{Timeout: uint8(opt.Timeout), Count: uint8(opt.RetryCount), RNR: rnrRetries + opt.moreRNR}
	if err := q.c.ToRTS(q.psn, try, min(peer.Reads, r.readsOut())); err != nil {
		return err
	}
	q.c.Connected()
	return nil
}

// destroyWait is how long close waits for ibv_destroy_qp where it need not. Devices take less than a millisecond. Soft RoCE takes up to
// three seconds if packets of the queue pair wait in the kernel for a neighbour that a lost link has taken away.
const destroyWait = 5 * time.Millisecond

// close implements ibv_modify_qp to ERR and ibv_destroy_qp. If the latter takes long, and the device is known to use no memory for the
// queue pair any more, close returns before it, and rail.Close waits for it and has its error. After a failure close can be called again.
func (q *queuePair) close() error {
	c, r := q.c, q.rail
	quiet, err := c.Quiesce()
	if err != nil {
		return err
	}
	if !quiet {
		q.c = nil
		r.endpoints.Add(-1)
		return nil
	}
	destroyed := make(chan error, 1)
	r.destroying.Go(func() {
		err := c.Destroy()
		if err == nil {
			r.endpoints.Add(-1)
		} else {
			r.notDestroyed.Store(&err)
		}
		destroyed <- err
	})
	late := time.NewTimer(destroyWait)
	defer late.Stop()
	select {
	case err := <-destroyed:
		if err != nil {
			return err
		}
	case <-late.C:
	}
	q.c = nil
	return nil
}

// maxReads is the READs that a connection has outstanding in each direction, if devices take as many.
const maxReads = 16

// rnrRetries is how often a message is sent again to a peer without a receive (RNR). A GORAIL peer always has one. 7 would be without end.
const rnrRetries = 6

// readsIn returns how many READs of a peer one connection answers at a time.
func (r *rail) readsIn() uint8 { return uint8(atMost(r.attr.MaxReads, maxReads)) }

// readsOut returns how many of our READs may be in flight on one connection.
func (r *rail) readsOut() uint8 { return uint8(atMost(r.attr.MaxReadsOut, maxReads)) }

var errConnected = &clib.CallError{Call: "connect", Errno: syscall.EISCONN}

// address describes an endpoint to its peer.
type address struct {
	QPN, PSN uint32
	LID, MTU uint16
	Ethernet bool
	Reads    uint8
	GID      [16]byte
}

const (
	addressForm = 1 // first byte: version of the layout
	addressLen  = 1 + 4 + 4 + 2 + 2 + 1 + 1 + 16
)

func (a address) encode() []byte {
	b := append(make([]byte, 0, addressLen), addressForm)
	b = binary.BigEndian.AppendUint32(b, a.QPN)
	b = binary.BigEndian.AppendUint32(b, a.PSN)
	b = binary.BigEndian.AppendUint16(b, a.LID)
	b = binary.BigEndian.AppendUint16(b, a.MTU)
	eth := byte(0)
	if a.Ethernet {
		eth = 1
	}
	return append(append(b, eth, a.Reads), a.GID[:]...)
}

func decodeAddress(b []byte) (a address, ok bool) {
	if len(b) != addressLen || b[0] != addressForm || b[13] > 1 {
		return a, false
	}
	a = address{QPN: binary.BigEndian.Uint32(b[1:]), PSN: binary.BigEndian.Uint32(b[5:]), LID: binary.BigEndian.Uint16(b[9:]),
		MTU: binary.BigEndian.Uint16(b[11:]), Ethernet: b[13] == 1, Reads: b[14], GID: [16]byte(b[15:])}
	return a, a.QPN < 1<<24 && a.PSN < 1<<24 && a.MTU >= 256 && a.Reads > 0
}

// port returns the peer's port for messages: an IP address on Ethernet, a LID on InfiniBand.
func (a address) port() string {
	if a.Ethernet {
		return netip.AddrFrom16(a.GID).Unmap().String()
	}
	return fmt.Sprintf("lid %d", a.LID)
}
