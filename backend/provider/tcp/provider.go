package tcp

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"time"

	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
	"gorail/backend/topo"
)

// Options of a Provider. The zero value is usable.
type Options struct {
	First, Last    uint16        // ports to listen on; 0: the system chooses
	ConnectTimeout time.Duration // how long a connection is tried; 0: 20 s
	Encryption     bool          // all bytes of connections are encrypted
	Compression    sock.Packing  // of what is sent
	Threads        int           // shards of each device; 0: one
	PeerTimeout    time.Duration // how soon a vanished host is noticed on an idle connection; 0: 60 s
	Congestion     string        // of data connections; "": the system's
	CUDAPath       string        // of the GPU driver's library, as dlopen takes it; "": gpu.DefaultPath
	Sys            fs.FS         // "/sys"; nil: this machine's
	Interfaces     func() ([]topo.Interface, error)

	tune      func(fd int) // of a new connection; nil but in tests
	libcrypto string       // as dlopen takes it; "" but in tests: the usual names
}

func (o Options) sockets() sockets {
	return sockets{PeerTimeout: o.PeerTimeout, Congestion: o.Congestion}
}

// Provider implements provider.Provider. Its methods are safe for concurrent use.
type Provider struct {
	o         Options
	listeners listeners
	said      said
	dialer    dialer
	paces     paces
}

var _ provider.Provider = (*Provider)(nil)

// New makes a Provider.
func New(o Options) *Provider {
	if o.ConnectTimeout == 0 {
		o.ConnectTimeout = 20 * time.Second
	}
	if o.PeerTimeout == 0 {
		o.PeerTimeout = time.Minute
	}
	if o.Sys == nil {
		o.Sys = os.DirFS("/sys")
	}
	if o.Interfaces == nil {
		o.Interfaces = topo.Interfaces
	}
	return &Provider{o: o}
}

// Name implements provider.Provider.
func (*Provider) Name() string { return provider.TCP }

// Discover implements provider.Provider: a device is a network interface with an address. It opens nothing.
func (p *Provider) Discover(ctx context.Context, f provider.Filter) ([]provider.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if p.o.Encryption {
		if err := sock.CheckLibcrypto(p.o.libcrypto); err != nil {
			return nil, p.noLibcrypto(err)
		}
	}
	if err := p.o.sockets().CheckCongestion(); err != nil {
		return nil, fmt.Errorf("%w: provider=%s: %w", provider.ErrUnusable, provider.TCP, err)
	}
	list, err := p.o.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("%w: provider=%s: the network interfaces cannot be listed: %w", provider.ErrNoDevice, provider.TCP, err)
	}
	found, err := devices(p.o.Sys, list, f)
	for i := range found {
		found[i].Shards, found[i].Encrypts = p.o.Threads, p.o.Encryption
	}
	return found, err
}

// Open implements provider.Provider. It listens on the device's address; the shards of a device share a listener.
func (p *Provider) Open(d provider.Device) (provider.Rail, error) {
	addr, ok := d.Opaque.(netip.Addr)
	if !ok {
		return nil, fmt.Errorf("%w: %s was not found by Discover of provider %q", provider.ErrNoDevice, d.Label(), provider.TCP)
	}
	return openRail(d, addr, p)
}

// noLibcrypto is an error of every device: nothing goes out in clear instead.
func (p *Provider) noLibcrypto(err error) error {
	return fmt.Errorf("%w: provider=%s with encryption=on: %w: %w; install OpenSSL's libcrypto, 1.1.1 or newer (Debian and Ubuntu: libssl3, Fedora and RHEL: openssl-libs), where the loader looks (ldconfig -p, LD_LIBRARY_PATH)",
		provider.ErrUnusable, provider.TCP, provider.ErrNoLibrary, err)
}
