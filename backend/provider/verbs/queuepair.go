package verbs

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"syscall"

	"gorail/backend/provider/internal/clib"
)

const (
	inlineAsked = 64   // bytes: a header and a short notification
	inlineMost  = 1024 // of any device: more is no answer
)

// queuePair is what an endpoint has of its device.
//
//	INIT -> RTR -> RTS   connect; on iWARP rdma_cm
//	any  -> ERR          close
type queuePair struct {
	rail     *rail
	c        *coreQP // nil when closed
	num, psn uint32
	lid      uint16
	mtu      int // bytes
}

// openQP implements ibv_create_qp and the step to INIT.
func (r *rail) openQP() (q *queuePair, err error) {
	q = &queuePair{rail: r, psn: drawPSN()}
	if q.c, err = newCoreQP(r.c); err != nil {
		return nil, err
	}
	if err = q.create(); err == nil {
		var p portAttr
		if p, err = r.lib.queryPort(r.ctx, r.entry.port.number); err == nil { // a new subnet manager may have given another LID
			q.lid, q.mtu = p.lid, r.pathMTU(p.mtu)
			err = enter(q.c)
		}
	}
	if err != nil {
		if q.c.qp != nil {
			r.lib.destroyQP(q.c.qp)
		}
		freeCoreQP(q.c)
		return nil, err
	}
	r.endpoints.Add(1)
	return q, nil
}

// create goes by what the queue pair reports. A provider that knows no inline data leaves what we asked for, and ignores IBV_SEND_INLINE
// (mana, vmw_pvrdma): so every request has a key, and its bytes stay until it has completed.
func (q *queuePair) create() error {
	r := q.rail
	want := qpCap{send: atMost(r.attr.maxQPWR, sendDepth), recv: atMost(r.attr.maxQPWR, recvDepth), inline: inlineAsked}
	qp, has, err := r.lib.createQP(r.c.pd, r.c.cq, want)
	if errors.Is(err, syscall.EINVAL) { // a device without inline data
		want.inline = 0
		qp, has, err = r.lib.createQP(r.c.pd, r.c.cq, want)
	}
	if err != nil {
		return err
	}
	if has.inline > inlineMost {
		has.inline = want.inline
	}
	has.send, has.recv = atMost(int(has.send), sendDepth), atMost(int(has.recv), recvDepth)
	has.set(q.c, qp)
	q.num = uint32(qp.qp_num)
	return r.lib.toInit(qp, r.entry.port.number, uint16(r.opt.PKeyIndex), r.iwarp())
}

// drawPSN is the first packet's number. RoCE has no authentication: who can guess it, the queue pair's number and a key, can forge requests.
func drawPSN() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:]) & 0xffffff
}

// pathMTU is the port's, or that of option ib_mtu where it is less.
func (r *rail) pathMTU(port int) int {
	if r.opt.MTU > 0 {
		return min(r.opt.MTU, port)
	}
	return port
}

// connect implements the steps to RTR and RTS. Without the rail's lock: nothing is posted yet, and a route may have to be found first.
func (q *queuePair) connect(peer address, gidIndex int) error {
	r, opt := q.rail, &q.rail.opt
	to := route{port: r.entry.port.number, lid: peer.LID, sl: uint8(opt.ServiceLevel), tc: uint8(opt.TrafficClass), gidIndex: gidIndex, gid: peer.GID}
	if err := r.lib.toRTR(q.c.qp, to, peer.QPN, peer.PSN, min(int(peer.MTU), q.mtu), r.readsIn()); err != nil {
		return err
	}
	try := retries{timeout: uint8(opt.Timeout), count: uint8(opt.RetryCount), rnr: uint8(opt.RNRRetry)}
	if err := r.lib.toRTS(q.c.qp, q.psn, try, min(peer.Reads, r.readsOut())); err != nil {
		return err
	}
	connected(q.c)
	return nil
}

// close implements ibv_modify_qp to ERR and ibv_destroy_qp. If it fails it can be tried again.
func (q *queuePair) close() error {
	if err := closeQP(q.c); err != nil {
		return err
	}
	q.c = nil
	q.rail.endpoints.Add(-1)
	return nil
}

// readsIn is how many READs of a peer's are answered at a time, on a connection.
func (r *rail) readsIn() uint8 { return uint8(atMost(r.attr.maxReads, uint32(r.opt.MaxReads))) }

// readsOut is how many of ours may be under way.
func (r *rail) readsOut() uint8 { return uint8(atMost(r.attr.maxReadsOut, uint32(r.opt.MaxReads))) }

var errConnected = &clib.CallError{Call: "connect", Errno: syscall.EISCONN}
