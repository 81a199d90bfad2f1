package tcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"gorail/backend/host"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
	"gorail/backend/trust"
)

// endpoint implements provider.Endpoint: one connection. The session's initiator makes it, since its control channel has got
// through the firewall that way.
type endpoint struct {
	rail *rail
	at   *place // of the rail when the endpoint was opened
	wait waiter // its ticket admits the peer, if it dials
	addr []byte
	core unsafe.Pointer

	mu         sync.Mutex
	c          *sock.Conn // nil when closed
	sec        *provider.Security
	peer       netip.AddrPort // invalid before Connect
	peerTicket trust.Ticket
	paced      *paceKey // nil: none
	cancel     context.CancelFunc
	flow       flow
	unanswered host.Unanswered
}

var _ provider.Listener = (*endpoint)(nil)

// newEndpoint makes an endpoint. Under the rail's mu: memory of GPUs comes before or after it.
func newEndpoint(r *rail) (*endpoint, error) {
	c, err := r.c.NewConn()
	if err != nil {
		return nil, err
	}
	e := &endpoint{rail: r, at: r.at.Load(), c: c, core: c.Core()}
	e.wait = waiter{secret: e.secret, attach: e.attach, broken: e.broken}
	_, _ = rand.Read(e.wait.ticket[:]) // never fails
	e.addr = address{At: e.at.listener.Addr(), Ticket: e.wait.ticket, Encrypted: r.opt.Encryption, Unpacks: r.opt.Compression != sock.NeverPack}.Encode()
	r.endpoints.Add(1)
	r.buffers.add(e)
	return e, nil
}

// OpenEndpoint implements provider.Rail. The connection is made after Connect.
func (r *rail) OpenEndpoint() (provider.Endpoint, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, r.error(provider.ErrEndpoint, errClosed)
	}
	if err := r.fill(func(g *bounce) bool { return g.regions.Load() > 0 }); err != nil {
		return nil, r.error(provider.ErrEndpoint, err)
	}
	e, err := newEndpoint(r)
	if err != nil {
		return nil, r.error(provider.ErrEndpoint, err)
	}
	return e, nil
}

// Addr has the listener's address and the endpoint's ticket. It must travel inside the control channel.
func (e *endpoint) Addr() []byte { return bytes.Clone(e.addr) }

func (e *endpoint) Core() unsafe.Pointer { return e.core }

// Connect implements provider.Endpoint. The initiator begins to dial; the target waits for it.
func (e *endpoint) Connect(peer []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.rail
	a, ok := decodeAddress(peer)
	switch {
	case e.c == nil:
		return r.error(provider.ErrEndpoint, errors.New("endpoint is closed"))
	case !ok:
		return fmt.Errorf("%w: %s: %x: %w", provider.ErrBadAddress, r.dev.Label(), peer, errAddress)
	case e.peer.IsValid():
		return r.error(provider.ErrBadAddress, syscall.EISCONN)
	case e.sec == nil:
		return r.error(provider.ErrEndpoint, errors.New("Secure must be called before Connect"))
	case a.Encrypted != r.opt.Encryption:
		initiator, target := option.OnOff(a.Encrypted), option.OnOff(r.opt.Encryption)
		if e.sec.Initiator {
			initiator, target = target, initiator
		}
		return r.error(provider.ErrBadAddress, fmt.Errorf("%w: the initiator has encryption=%s, the target encryption=%s; give both the same value",
			errEncryption, initiator, target))
	}
	e.peer, e.peerTicket = a.At, a.Ticket
	if a.Unpacks {
		e.c.Pack(e.pace(a.At.Addr()))
	} else if r.opt.Compression == sock.AlwaysPack {
		r.plain.Add(1)
	}
	e.c.Begin(e.sec.Keys)
	if !e.sec.Initiator {
		e.at.listener.Expect(&e.wait)
		return nil
	}
	var ctx context.Context
	ctx, e.cancel = context.WithTimeout(context.Background(), r.opt.ConnectTimeout)
	secret := e.sec.Link(a.Ticket)
	r.dials.Go(func() {
		defer secret.Wipe()
		defer e.cancel()
		e.dial(ctx, a, secret)
	})
	return nil
}

// Close closes the connection. Afterwards nothing touches a local buffer, and the peer does not reach our memory through the
// endpoint. Posted operations end with ECANCELED. A second Close does nothing. The error is a provider.GPUBusy.
func (e *endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return nil
	}
	e.Shut() // under mu: not before an Expect of Connect
	if e.cancel != nil {
		e.cancel()
	}
	gpu, ended := e.c.Close()
	e.c = nil
	if e.paced != nil {
		e.rail.paces.give(*e.paced)
	}
	e.rail.endpoints.Add(-1)
	e.rail.buffers.remove(e)
	if ended {
		return nil
	}
	err := fmt.Errorf("GPU %d has not ended a copy to or from a bounce buffer within a second: its memory may still be read and written", gpu)
	return &provider.GPUBusy{Err: e.rail.error(provider.ErrEndpoint, err), Over: e.rail.copiesEnded}
}

// pace is for compression=auto. Under mu.
func (e *endpoint) pace(peer netip.Addr) *sock.Paces {
	if e.rail.opt.Compression != sock.PackIfFast {
		return nil
	}
	k := paceKey{e.sec.Keys, e.at.addr, peer}
	p := e.rail.paces.take(k)
	if p != nil {
		e.paced = &k
	}
	return p
}

// Secure implements provider.Listener.
func (e *endpoint) Secure(s provider.Security) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sec = &s
}

var (
	errAddress    = errors.New("not an address of this fabric")
	errEncryption = errors.New("the ends differ in option encryption")
)

func (e *endpoint) dial(ctx context.Context, to address, s *trust.LinkSecret) {
	c, err := e.rail.dialer.Dial(ctx, e.rail.opt.sockets(), e.rail.source, to, s)
	if err != nil {
		e.broken(err)
		return
	}
	e.attach(c)
}

// secret is a waiter's. After the end of the session it is one that no peer has.
func (e *endpoint) secret() *trust.LinkSecret {
	e.mu.Lock()
	sec := e.sec
	e.mu.Unlock()
	return sec.Link(e.wait.ticket)
}

// attach is a waiter's: it hands a proved connection to the data path.
func (e *endpoint) attach(c *connection) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer c.Close()
	if e.c == nil {
		return
	}
	fd, err := -1, e.encrypt(c)
	if err == nil {
		fd, err = e.rail.opt.sockets().Take(c.TCPConn)
	}
	if err == nil {
		if e.rail.opt.tune != nil {
			e.rail.opt.tune(fd)
		}
		err = e.c.Attach(fd)
	}
	if err != nil {
		e.c.Broken(errnoOf(err))
	}
}

// encrypt gives the data path the keys of a connection. Under mu.
func (e *endpoint) encrypt(c *connection) error {
	if c.Encrypted != e.rail.opt.Encryption { // the peer says one thing in its address, another here
		return errProof
	}
	if !c.Encrypted {
		return nil
	}
	ticket := e.wait.ticket
	if e.sec.Initiator {
		ticket = e.peerTicket
	}
	link := e.sec.Link(ticket)
	defer link.Wipe()
	records := link.Records(c.Initiator, c.Target, 0)
	defer records.Wipe()
	return e.c.Encrypt(records, e.sec.Initiator)
}

// broken is a waiter's: there will be no connection.
func (e *endpoint) broken(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c != nil {
		e.c.Broken(errnoOf(err))
	}
}

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, errProof):
		return syscall.EPROTO
	case errors.As(err, &timeout) && timeout.Timeout():
		return syscall.ETIMEDOUT
	}
	return syscall.ECONNABORTED
}

// Shut implements provider.Listener.
func (e *endpoint) Shut() { e.at.listener.Forget(&e.wait) }

// Ends implements provider.Listener.
func (e *endpoint) Ends() (own, peer string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.peer.IsValid() {
		peer = e.peer.String()
	}
	return e.at.listener.Addr().String(), peer
}

// look looks at the connection, if there is one. rtt is the least, in microseconds.
func (e *endpoint) look(bounds func() sysctls) (limited int, rate, rtt uint64, peer netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return noBuffer, 0, 0, peer
	}
	info, sendBuffer, ok := e.c.Info()
	if !ok {
		return noBuffer, 0, 0, peer
	}
	limited = e.flow.look(&info, sendBuffer, bounds)
	return limited, info.Delivery_rate, uint64(info.Min_rtt), e.peer.Addr()
}

// Copying implements provider.Listener: bounce buffers have completions of their own.
func (e *endpoint) Copying() int { return 0 }

// Unanswered implements provider.Listener.
func (e *endpoint) Unanswered(settled bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return false
	}
	info, _, ok := e.c.Info()
	if !ok {
		return false
	}
	had := e.unanswered.Look(&info, time.Now())
	return had || !settled && host.Repeats(&info)
}

// Packets implements provider.Listener.
func (e *endpoint) Packets(alive bool) (lost, counters string) {
	own, peer := e.Ends()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return "", ""
	}
	info, _, ok := e.c.Info()
	if !ok {
		return "", ""
	}
	return host.LostPackets(&info, own+" and "+peer, alive), host.PacketCounters(&info)
}

// address is an endpoint's address as the peer gets it, inside the control channel.
type address struct {
	At        netip.AddrPort // of the listener
	Ticket    trust.Ticket
	Encrypted bool // its connections are: both ends have the same value
	Unpacks   bool // what comes over its connections may be packed
}

const addrLen = 1 + 1 + 2 + 16 + 16 // version, flags, port, address, ticket

// Flags of an address. Versions before option compression take only the first: a peer of theirs must have compression=off here.
const (
	addrEncrypted = 1 << iota
	addrUnpacks
)

// Encode returns the bytes of an address.
func (a address) Encode() []byte {
	ip := a.At.Addr().As16()
	b := append(make([]byte, 0, addrLen), openingVersion, flagByte(a.Encrypted)*addrEncrypted|flagByte(a.Unpacks)*addrUnpacks)
	b = binary.BigEndian.AppendUint16(b, a.At.Port())
	b = append(b, ip[:]...)
	return append(b, a.Ticket[:]...)
}

// decodeAddress decodes the address of a peer. A port and a unicast address must be there.
func decodeAddress(b []byte) (a address, ok bool) {
	if len(b) != addrLen || b[0] != openingVersion || b[1] > addrEncrypted|addrUnpacks {
		return a, false
	}
	ip := netip.AddrFrom16([16]byte(b[4:20])).Unmap()
	a.At = netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b[2:]))
	copy(a.Ticket[:], b[20:])
	a.Encrypted, a.Unpacks = b[1]&addrEncrypted != 0, b[1]&addrUnpacks != 0
	return a, a.At.Port() != 0 && !ip.IsUnspecified() && !ip.IsMulticast()
}
