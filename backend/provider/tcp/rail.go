package tcp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"gorail/backend/gpu"
	"gorail/backend/host"
	"gorail/backend/limits"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
)

// rail implements provider.Rail: an interface, where it listens, and the C rail with all connections.
type rail struct {
	dev       provider.Device // as it was opened; place has the one of now
	opt       Options
	c         *sock.Rail
	at        atomic.Pointer[place]
	listeners *listeners
	dialer    *dialer
	paces     *paces
	dials     sync.WaitGroup
	buffers   buffers

	endpoints, regions atomic.Int32
	plain              atomic.Uint64 // peers that take nothing packed, though compression is on here

	ranges

	mu          sync.Mutex
	closed      bool
	bounces     bounces
	broken      reported  // connections that broke a rule
	forged      reported  // connections with a record that was not the peer's
	unpacked    reported  // endpoints of plain
	acceptErrAt time.Time // when an error of accept was last reported
}

var (
	_ provider.Mover    = (*rail)(nil)
	_ provider.Reporter = (*rail)(nil)
)

func openRail(d provider.Device, addr netip.Addr, p *Provider) (*rail, error) {
	r := &rail{dev: d, opt: p.o, listeners: &p.listeners, dialer: &p.dialer, paces: &p.paces, buffers: buffers{said: &p.said}}
	r.at.Store(&place{dev: d, addr: addr})
	var err error
	if r.c, err = sock.NewRail(d.Shard); err != nil {
		return nil, r.error(provider.ErrUnusable, fmt.Errorf("epoll_create1, eventfd: %w", host.Advise(err)))
	}
	if p.o.Encryption {
		if err = r.c.Encrypt(p.o.libcrypto); err != nil {
			_ = r.c.Free() // nothing is open
			return nil, r.error(provider.ErrUnusable, fmt.Errorf("encryption=on: %w", err))
		}
	}
	if err = r.c.Pack(p.o.Compression); err != nil {
		_ = r.c.Free() // nothing is open
		return nil, r.error(provider.ErrUnusable, fmt.Errorf("compression=%s: %w", p.o.Compression, err))
	}
	at, err := r.listen(d, addr)
	if err != nil {
		_ = r.c.Free() // nothing is open
		return nil, r.error(provider.ErrUnusable, host.Advise(err))
	}
	r.at.Store(at)
	r.bounces.gpus = gpu.NewLazyDriver(p.o.CUDAPath, 0)
	return r, nil
}

func (r *rail) Device() provider.Device { return r.at.Load().dev }

// Caps implements provider.Rail. compression=on has smaller operations (TCP_PACK_BODY). Else a WRITE of 1 MiB goes to the socket in one call: in pieces of
// 256 KiB it takes 1.8 times as long.
// Shards divide a transfer in pieces of 512 KiB: bare sockets on 32 cores and 4 threads move 15 GB/s with those, and 13.8 with larger ones.
func (r *rail) Caps() provider.Caps {
	most := uint64(sock.MaxMsg)
	if r.opt.Compression == sock.AlwaysPack {
		most = sock.PackBody
	}
	whole := most
	if r.dev.Shards > 1 {
		whole = min(whole, sock.MaxMsg/2)
	}
	return provider.Caps{ProviderKeys: true, OwnKeys: true, KeySize: 8, Descriptors: 1, MaxMR: 1 << sock.OffsetBits, MaxMsg: most, PreferUnsplit: whole, Bounces: mostBounced}
}

// Notes implements provider.Rail.
func (r *rail) Notes() []string { return nil }

func (r *rail) Core() unsafe.Pointer { return r.c.Core() }

func (r *rail) error(phase, err error) error {
	return fmt.Errorf("%w: %s (%s): %w", phase, r.dev.Label(), r.at.Load().addr, err)
}

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

// place is where a rail is: its interface may get another address.
type place struct {
	dev      provider.Device
	addr     netip.Addr
	listener *listener
	leave    func() // gives the listener back
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

// source is the address that connections begin from.
func (r *rail) source() netip.Addr { return r.at.Load().addr }

var errClosed = errors.New("the rail is closed")

// copiesEnded reports that GPUs have ended all copies of closed endpoints.
func (r *rail) copiesEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed || r.c.Kept() == 0
}

// Warnings implements provider.Reporter.
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
	if n := r.unpacked.more(r.plain.Load()); n > 0 {
		all = append(all, fmt.Sprintf("compression=on has no effect on %d connections of %s: these peers have compression=off, or a version without it", n, r.dev.Label()))
	}
	if n := r.broken.more(count.Broken); n > 0 {
		all = append(all, fmt.Sprintf("%d connections of peers on %s broke a rule of the protocol and were ended: is the peer the same version of GORAIL?", n, r.dev.Label()))
	}
	return all
}

// Packed implements provider.Reporter.
func (r *rail) Packed() (before, after uint64) {
	c := r.c.Counters()
	return c.Texts, c.Packed
}

// acceptError returns the listener's last error, to the first of the shards that share it.
func (r *rail) acceptError() error {
	if r.dev.Shard > 0 {
		return nil
	}
	return r.at.Load().listener.AcceptError()
}

// Limited implements provider.Reporter. The first of the shards reports.
func (r *rail) Limited() map[limits.Limit]uint64 {
	if r.dev.Shard > 0 {
		return nil
	}
	return map[limits.Limit]uint64{limits.TCPOpenings: r.at.Load().listener.Limited()}
}

const logEvery = time.Minute

// reported is a counter that warnings name, once a minute at most.
type reported struct {
	count uint64 // as last reported
	at    time.Time
}

// more returns what has come since the last report, if another one is due.
func (r *reported) more(count uint64) uint64 {
	if count == r.count || time.Since(r.at) < logEvery {
		return 0
	}
	n := count - r.count
	r.count, r.at = count, time.Now()
	return n
}
