package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"gorail/backend/provider"
)

// address is what a peer must know of an endpoint.
type address struct {
	QPN, PSN uint32
	LID, MTU uint16
	Ethernet bool
	Reads    uint8
	GID      [16]byte
}

const (
	addressForm = 1 // first byte; another is another layout
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

// endpoint implements provider.Endpoint: a queue pair.
type endpoint struct {
	addr     address
	gidIndex int // the source of its route; -1: within the subnet
	core     unsafe.Pointer

	mu        sync.Mutex // the methods of qp, and connected
	qp        *queuePair
	connected bool
}

// OpenEndpoint implements ibv_create_qp and the step to INIT. The error wraps provider.ErrEndpoint.
func (r *rail) OpenEndpoint() (provider.Endpoint, error) {
	if r.cm != nil {
		return r.openIW()
	}
	g, err := r.source()
	if err != nil {
		return nil, fmt.Errorf("%w: %s/%s: %w", provider.ErrEndpoint, r.dev.Fabric, r.dev.Name, err)
	}
	qp, err := r.openQP()
	if err != nil {
		return nil, r.openError(err)
	}
	e := &endpoint{qp: qp, gidIndex: r.ibGID, core: unsafe.Pointer(qp.c), addr: address{QPN: qp.num, PSN: qp.psn, LID: qp.lid, MTU: uint16(qp.mtu),
		Ethernet: r.ethernet, Reads: r.readsIn(), GID: g.addr.As16()}}
	if r.ethernet {
		e.gidIndex = g.index
	}
	return e, nil
}

func (r *rail) openError(err error) error {
	to := ""
	if errors.Is(err, syscall.ENOSPC) {
		to = fmt.Sprintf(" beyond %d entries, the most that the device has (max_cqe; fewer peers, fewer qps_per_rail, or more devices)", r.attr.maxCQE)
	}
	return r.error(provider.ErrEndpoint, err, to)
}

func (e *endpoint) Addr() []byte         { return e.addr.encode() }
func (e *endpoint) Core() unsafe.Pointer { return e.core }

// Connect implements the steps to RTR and RTS. On RoCE the kernel looks for the way to the peer's address, which may take a
// second; nothing else waits meanwhile. The address is the peer's word. The error wraps provider.ErrBadAddress.
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
		err = e.qp.connect(a, e.gidIndex)
	}
	if err != nil {
		return r.error(provider.ErrBadAddress, err, " to "+r.entry.peerName(a))
	}
	e.connected = true
	return nil
}

// Close implements ibv_modify_qp to ERR and ibv_destroy_qp: the peer's access ends with it, and what was posted is reported by
// poll as ECANCELED unless it had ended before. A second Close does nothing.
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
