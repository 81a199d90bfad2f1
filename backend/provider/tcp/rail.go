package tcp

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"gorail/backend/access"
	"gorail/backend/host"
	"gorail/backend/limits"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/bounce"
	"gorail/backend/provider/tcp/handshake"
	"gorail/backend/provider/tcp/sock"
	"gorail/backend/provider/vram"
)

// rail implements provider.Rail: an interface, where it listens, and the C rail with all connections.
type rail struct {
	dev       provider.Device // as it was opened; place has the one of now
	opt       Options
	c         *sock.Rail
	at        atomic.Pointer[place]
	listeners *listeners
	dialer    *handshake.Dialer
	dials     sync.WaitGroup
	buffers   buffers

	endpoints, regions atomic.Int32

	mu          sync.Mutex
	keys        randoms
	closed      bool
	bounces     bounces
	broken      reported  // connections that broke a rule
	forged      reported  // connections with a record that was not the peer's
	acceptErrAt time.Time // when an error of accept was last reported
}

// place is where a rail is: its interface may get another address.
type place struct {
	dev      provider.Device
	addr     netip.Addr
	listener *handshake.Listener
	leave    func() // gives the listener back
}

var (
	_ provider.Mover   = (*rail)(nil)
	_ provider.Warner  = (*rail)(nil)
	_ provider.Limiter = (*rail)(nil)
	_ provider.Later   = (*rail)(nil)
)

func openRail(d provider.Device, addr netip.Addr, p *Provider) (*rail, error) {
	r := &rail{dev: d, opt: p.o, listeners: &p.listeners, dialer: &p.dialer, buffers: buffers{said: &p.said}}
	r.at.Store(&place{dev: d, addr: addr})
	var err error
	if r.c, err = sock.NewRail(d.Shard); err != nil {
		return nil, r.error(provider.ErrUnusable, fmt.Errorf("epoll_create1, eventfd: %w", host.Advise(err)))
	}
	if p.o.Encryption {
		if err = r.c.Encrypt(p.o.Libcrypto); err != nil {
			_ = r.c.Free() // nothing is open
			return nil, r.error(provider.ErrUnusable, fmt.Errorf("encryption=on: %w", err))
		}
	}
	at, err := r.listen(d, addr)
	if err != nil {
		_ = r.c.Free() // nothing is open
		return nil, r.error(provider.ErrUnusable, host.Advise(err))
	}
	r.at.Store(at)
	r.bounces.gpus = vram.New(p.o.CUDAPath, 0)
	return r, nil
}

// listen listens on an address of the rail's interface.
func (r *rail) listen(d provider.Device, addr netip.Addr) (*place, error) {
	l, leave, err := r.listeners.get(d, addr, r.opt.sockets(), r.opt.First, r.opt.Last)
	if err != nil {
		return nil, err
	}
	return &place{dev: d, addr: addr, listener: l, leave: leave}, nil
}

// Move implements provider.Mover.
func (r *rail) Move(to netip.Prefix) error {
	d := r.Device()
	d.Addr, d.Subnet, d.Opaque = to.Addr().String(), to.Masked().String(), to.Addr()
	at, err := r.listen(d, to.Addr())
	if err != nil {
		return r.error(provider.ErrUnusable, host.Advise(err))
	}
	r.mu.Lock()
	leave := at.leave
	if !r.closed {
		leave = r.at.Swap(at).leave
	}
	r.mu.Unlock()
	leave() // without mu: it waits for a connection that has come in
	return nil
}

func (r *rail) Device() provider.Device { return r.at.Load().dev }
func (r *rail) Core() unsafe.Pointer    { return r.c.Core() }

// Notes implements provider.Rail.
func (r *rail) Notes() []string { return nil }

// Caps implements provider.Rail. A WRITE of 1 MiB goes to the socket in one call: in pieces of 256 KiB it takes 1.8 times as long.
// Shards divide a transfer in pieces of 512 KiB: bare sockets on 32 cores and 4 threads move 15 GB/s with those, and 13.8 with larger ones.
func (r *rail) Caps() provider.Caps {
	whole := uint64(sock.MaxMsg)
	if r.dev.Shards > 1 {
		whole /= 2
	}
	return provider.Caps{ProviderKeys: true, KeySize: 8, Descriptors: 1, MaxMR: 1 << sock.OffsetBits, MaxMsg: sock.MaxMsg, PreferUnsplit: whole, Bounces: mostBounced}
}

func (r *rail) error(phase, err error) error {
	return fmt.Errorf("%w: %s (%s): %w", phase, r.dev.Label(), r.at.Load().addr, err)
}

// source is the address that connections begin from.
func (r *rail) source() netip.Addr { return r.at.Load().addr }

// Register enters the range into the rail's table. Nothing is pinned, and the memory may be mapped later. key is ignored: the
// key is random. Implements no call.
func (r *rail) Register(addr, length, _ uint64, peers access.Rights) (provider.MR, error) {
	if length == 0 || addr+length < addr || length > 1<<sock.OffsetBits {
		return nil, r.error(provider.ErrRegister, fmt.Errorf("range %#x + %d is empty, wraps, or has more than %d bytes", addr, length, uint64(1)<<sock.OffsetBits))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := r.enter(addr, length, peers, nil, false)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Later implements provider.Later: the table takes any range at any time.
func (r *rail) Later(uint64, uint64) bool { return true }

// enter enters a range into the rail's table. Under mu.
func (r *rail) enter(addr, length uint64, peers access.Rights, g *bounce.GPU, ours bool) (*region, error) {
	if r.closed {
		return nil, r.error(provider.ErrRegister, errClosed)
	}
	m, err := &region{rail: r, key: r.keys.next()}, error(nil)
	if m.number, err = r.c.Register(addr, length, m.key, peers, g, ours); err != nil {
		return nil, r.error(provider.ErrRegister, fmt.Errorf("the table of %d regions: %w", r.regions.Load(), err))
	}
	r.regions.Add(1)
	return m, nil
}

// OpenEndpoint implements provider.Rail. The connection is made after Connect.
func (r *rail) OpenEndpoint() (provider.Endpoint, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, r.error(provider.ErrEndpoint, errClosed)
	}
	e, err := newEndpoint(r)
	if err != nil {
		return nil, r.error(provider.ErrEndpoint, err)
	}
	return e, nil
}

var errClosed = errors.New("the rail is closed")

// Close closes the listener. While endpoints or regions are open, it fails with EBUSY and changes nothing. A second Close does
// nothing.
func (r *rail) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if e, m := r.endpoints.Load(), r.regions.Load(); e > 0 || m > 0 {
		return r.error(provider.ErrUnusable, fmt.Errorf("close with %d endpoints and %d regions open: %w", e, m, syscall.EBUSY))
	}
	r.closed = true
	r.at.Load().leave()
	r.dials.Wait()
	if err := r.c.Free(); err != nil {
		return r.error(provider.ErrUnusable, err)
	}
	if err := r.bounces.close(); err != nil {
		return r.error(provider.ErrUnusable, err)
	}
	return nil
}

// copiesEnded reports that GPUs have ended all copies of closed endpoints.
func (r *rail) copiesEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed || r.c.Kept() == 0
}

// Warnings implements provider.Warner.
func (r *rail) Warnings() (all []string) {
	all = r.buffers.warnings(r.dev, r.at.Load().addr)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return all
	}
	if err := r.acceptError(); err != nil && time.Since(r.acceptErrAt) >= logEvery {
		all = append(all, fmt.Sprintf("cannot accept connections of peers on %s (%s): %v", r.dev.Label(), r.at.Load().listener.Addr(), host.Advise(err)))
		r.acceptErrAt = time.Now()
	}
	all = append(all, r.bounces.warnings(r.c, r.dev.Label())...)
	count := r.c.Counters()
	if n := r.forged.more(count.Forged); n > 0 {
		all = append(all, fmt.Sprintf("%d connections of peers on %s had bytes that the peer did not send, and were ended: something was changed on the way", n, r.dev.Label()))
	}
	if n := r.broken.more(count.Broken); n > 0 {
		all = append(all, fmt.Sprintf("%d connections of peers on %s broke a rule of the protocol and were ended: is the peer the same version of GORAIL?", n, r.dev.Label()))
	}
	return all
}

// acceptError returns the listener's last error, to the first of the shards that share it.
func (r *rail) acceptError() error {
	if r.dev.Shard > 0 {
		return nil
	}
	return r.at.Load().listener.AcceptError()
}

// Limited implements provider.Limiter. The first of the shards reports.
func (r *rail) Limited() map[limits.Limit]uint64 {
	if r.dev.Shard > 0 {
		return nil
	}
	return map[limits.Limit]uint64{limits.TCPOpenings: r.at.Load().listener.Limited()}
}

// randoms are random numbers that are read several at a time: a read may be a system call.
type randoms struct {
	bytes [512]byte
	left  []byte // of bytes
}

func (r *randoms) next() uint64 {
	if len(r.left) == 0 {
		_, _ = rand.Read(r.bytes[:]) // never fails
		r.left = r.bytes[:]
	}
	n := binary.NativeEndian.Uint64(r.left)
	clear(r.left[:8])
	r.left = r.left[8:]
	return n
}

// region implements provider.MR and provider.Keyed: an entry of the rail's table.
type region struct {
	rail   *rail
	number uint32
	key    uint64
	once   sync.Once
}

var _ provider.Keyed = (*region)(nil)

// Key returns the number that keys of sessions are made of. No peer gets it.
func (m *region) Key() uint64 { return m.key }

// Base returns the region's number in the upper bits: the lower bits are the offset.
func (m *region) Base() uint64         { return uint64(m.number) << sock.OffsetBits }
func (m *region) Desc() unsafe.Pointer { return nil }

// KeyFor implements provider.Keyed.
func (m *region) KeyFor(salt [16]byte) uint64 { return sock.SessionKey(salt, m.key, m.number) }

// Close ends all access to the region, also in the middle of a frame.
func (m *region) Close() error {
	var err error
	m.once.Do(func() {
		if err = m.rail.c.Deregister(m.number); err != nil {
			err = m.rail.error(provider.ErrRegister, fmt.Errorf("a copy by the GPU has not ended within a second: %w", err))
		}
		m.rail.regions.Add(-1)
	})
	return err
}
