// Package fake is a fabric inside one process, for tests of the core and the engine. It implements the interfaces of
// package provider and the ops table of include/gr_provider.h, with real copies between buffers and scripted
// misbehaviour.
//
// A Fabric joins the providers of several engines. Devices with the same Subnet reach each other. Everything is
// deterministic: nothing depends on time, and random numbers come from seeds. Polls of either side execute operations
// in the order of posting. A rail's wait_fd stays signaled while there is more to do.
package fake

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"

	"gorail/backend/provider"
)

// Link describes one device of a Provider.
type Link struct {
	Name     string
	Subnet   string   // "" reaches every device
	Mbps     uint64   // 0 = unknown
	Node     int      // NUMA node plus one, 0 = unknown
	Caps     Caps     // zero value: TCPCaps()
	NoWaitFD bool     // no wait descriptor: polled by timer
	Notes    []string // the result of Rail.Notes
	Worker   int      // the core's thread that polls the rail
}

// Caps are the properties of a fake rail, for the engine and for the core.
type Caps struct {
	provider.Caps
	Ordered          bool   // gr_rail.is.ordered
	Chained          bool   // gr_rail.is.chained
	ByProcessor      bool   // gr_rail.is.by_processor
	DeliveryComplete bool   // a completion proves placement at the target
	VirtAddr         bool   // remote addresses are virtual addresses; else offsets from the region's start
	LocalDesc        bool   // local buffers need registration descriptors
	IOVLimit         int    // gr_rail.limit.iov_limit
	TxDepth, RxDepth int    // gr_rail.limit.tx_depth, rx_depth
	MaxSend          uint64 // gr_rail.limit.msg_size
	WindowMin        uint64 // gr_rail.limit.window_min
	Secured          bool   // endpoints are provider.Listener
	Keyed            bool   // keys of regions differ between sessions
}

// TCPCaps returns the capabilities of libfabric's native tcp.
func TCPCaps() Caps {
	return Caps{Caps: provider.Caps{KeySize: 8, MaxMsg: 1 << 40}, Ordered: true, Chained: true, DeliveryComplete: true, IOVLimit: 4, TxDepth: 256,
		RxDepth: 256, MaxSend: 1 << 20}
}

// SecuredCaps returns the capabilities of a fabric whose connections prove that they belong to their link.
func SecuredCaps() Caps {
	c := TCPCaps()
	c.Secured, c.Keyed = true, true
	return c
}

// EFACaps returns the most restricted capabilities: no order, provider's keys, virtual addresses, local descriptors.
func EFACaps() Caps {
	return Caps{Caps: provider.Caps{ProviderKeys: true, PinsMemory: true, KeySize: 8, MaxMsg: 1 << 30}, DeliveryComplete: true, VirtAddr: true, LocalDesc: true,
		IOVLimit: 1, TxDepth: 64, RxDepth: 128, MaxSend: 8 << 10}
}

// VerbsCaps returns the capabilities of an ordered queue pair whose completions do not prove placement.
func VerbsCaps() Caps {
	return Caps{Caps: provider.Caps{ProviderKeys: true, PinsMemory: true, KeySize: 4, MaxMsg: 1 << 31}, Ordered: true, VirtAddr: true, LocalDesc: true,
		IOVLimit: 4, TxDepth: 128, RxDepth: 128, MaxSend: 64 << 10}
}

// Provider implements provider.Provider.
type Provider struct {
	fabric *Fabric
	links  []Link

	mu    sync.Mutex
	rails map[string]*Rail // the last opened rail of each device
}

var _ provider.Provider = (*Provider)(nil)

// Provider makes the provider of one engine. Without links it has one device, "fake0".
func (f *Fabric) Provider(links ...Link) *Provider {
	if len(links) == 0 {
		links = []Link{{Name: "fake0"}}
	}
	return &Provider{fabric: f, links: links, rails: make(map[string]*Rail)}
}

// Name implements provider.Provider.
func (p *Provider) Name() string { return "fake" }

// Discover implements provider.Provider. It ignores the filter's Fabrics; Devices are globs.
func (p *Provider) Discover(ctx context.Context, f provider.Filter) ([]provider.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var out []provider.Device
	for _, l := range p.links {
		if wanted(f.Devices, l.Name) {
			out = append(out, provider.Device{Provider: p.Name(), Fabric: "fake", Name: l.Name, Subnet: l.Subnet, Mbps: l.Mbps,
				Addr: "127.0.0.1", Loopback: true, NUMA: l.Node - 1, Opaque: l})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: fake: option devices=%s", provider.ErrNoDevice, strings.Join(f.Devices, ","))
	}
	return out, nil
}

func wanted(globs []string, name string) bool {
	including, in := false, false
	for _, g := range globs {
		pattern, exclude := strings.CutPrefix(g, "!")
		including = including || !exclude
		if ok, _ := path.Match(pattern, name); ok {
			if exclude {
				return false
			}
			in = true
		}
	}
	return in || !including
}

// Open implements provider.Provider.
func (p *Provider) Open(d provider.Device) (provider.Rail, error) {
	l, ok := d.Opaque.(Link)
	if !ok {
		return nil, fmt.Errorf("%w: fake/%s", provider.ErrNoDevice, d.Name)
	}
	if l.Caps == (Caps{}) {
		l.Caps = TCPCaps()
	}
	r, err := openRail(p.fabric, d, l)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rails[l.Name] = r
	return r, nil
}

// Rail returns the rail that was last opened on a device, else nil. A test scripts an engine's rail with it.
func (p *Provider) Rail(device string) *Rail {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rails[device]
}
