package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"unsafe"

	"gorail/backend/gpu"
	"gorail/backend/limits"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
	"gorail/backend/wire"
)

// nvlink is a rail of NVLink: a rail of sockets whose bulk transfers are copies of GPUs.
type nvlink struct {
	dev    provider.Device
	is     nvlinkDevice
	r      *rail  // its regions are not used
	path   string // of the GPU driver's library
	gpus   *gpu.LazyDriver
	mapper *nvMapper

	mu      sync.Mutex
	regions map[uint32]*nvRegion // by number
	warned  map[string]bool      // texts that were warnings
	warns   []string
}

var (
	_ provider.VRAM     = (*nvlink)(nil)
	_ provider.Lender   = (*nvlink)(nil)
	_ provider.Reporter = (*nvlink)(nil)
)

func (p *NVLink) open(d provider.Device, is nvlinkDevice) (provider.Rail, error) {
	addr, _ := is.at.Opaque.(netip.Addr)
	under := is.at
	under.Fabric = provider.NVLink // the name in messages, and in secrets of links
	r, err := openRail(under, addr, p.sockets)
	if err != nil {
		return nil, err
	}
	n := &nvlink{dev: d, is: is, r: r, path: p.o.CUDAPath, gpus: gpu.NewLazyDriver(p.o.CUDAPath, sock.MaxGPUs), regions: map[uint32]*nvRegion{}, warned: map[string]bool{}}
	if n.mapper, err = newNVMapper(n, p.o.Copies); err != nil {
		_ = r.Close()
		return nil, r.error(provider.ErrUnusable, err)
	}
	return n, nil
}

func (n *nvlink) Device() provider.Device { return n.dev }
func (n *nvlink) Notes() []string         { return nil }
func (n *nvlink) Core() unsafe.Pointer    { return n.r.Core() }

// Caps implements provider.Rail.
func (n *nvlink) Caps() provider.Caps {
	return provider.Caps{ProviderKeys: true, KeySize: 8, Descriptors: 1, MaxMR: 1 << sock.OffsetBits, MaxMsg: sock.MaxMsg, Bulk: true, VRAMOnly: true}
}

var errVRAMOnly = errors.New("NVLink between hosts moves memory of GPUs, and host memory with fabric handles (EGM)")

// TakesHost implements provider.Lender.
func (n *nvlink) TakesHost(addr, length uint64) bool {
	if !gpu.KnowsHost(n.path, addr) {
		return false
	}
	_, is, err := n.gpus.HostRange(addr, length, n.is.gpus)
	return is && err == nil
}

// Register implements provider.Rail, for host memory that TakesHost.
func (n *nvlink) Register(addr, length, _ uint64, peers option.Rights) (provider.MR, error) {
	m, is, err := n.gpus.HostRange(addr, length, n.is.gpus)
	if err == nil && is {
		var g *nvRegion
		if g, err = n.enter(addr, length, peers, m); err == nil {
			return g, nil
		}
	} else if err == nil {
		err = errVRAMOnly
	}
	return nil, fmt.Errorf("%w: %s: host memory at %#x + %d: %w", provider.ErrRegister, n.dev.Label(), addr, length, err)
}

// Later implements provider.Rail.
func (n *nvlink) Later(uint64, uint64) bool { return false }

// nvEndpoint is an endpoint whose number the mapper knows.
type nvEndpoint struct {
	*endpoint
	of     *nvlink
	number uint64
	asks   chan struct{} // a token for each question for handles
}

// OpenEndpoint implements provider.Rail.
func (n *nvlink) OpenEndpoint() (provider.Endpoint, error) {
	e, err := n.r.OpenEndpoint()
	if err != nil {
		return nil, err
	}
	ep := &nvEndpoint{endpoint: e.(*endpoint), of: n, asks: make(chan struct{}, nvAsks)}
	ep.number = ep.c.Number()
	n.mapper.opened(ep)
	return ep, nil
}

// Close implements provider.Endpoint. The peer's memory is unmapped when it returns, unless a GPU has not ended a copy.
func (e *nvEndpoint) Close() error {
	err := e.endpoint.Close()
	e.of.mapper.closed(e)
	return err
}

// Copying implements provider.Listener.
func (e *nvEndpoint) Copying() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return 0
	}
	return e.c.Copying()
}

// Forget implements provider.Mapper.
func (n *nvlink) Forget(of provider.Endpoint, region uint32) {
	e := of.(*nvEndpoint)
	e.mu.Lock()
	if e.c != nil {
		e.c.ForgetImport(region)
	}
	e.mu.Unlock()
	n.mapper.settle()
}

// nvRegion implements provider.MR.
type nvRegion struct {
	rail   *nvlink
	number uint32
	key    uint64
	peers  option.Rights
	desc   unsafe.Pointer
	mem    *gpu.Range
	once   sync.Once
	lends  sync.RWMutex // held while handles are exported: the driver does not bear questions about memory that is being unmapped
	closed bool         // under lends
}

// RegisterVRAM implements provider.VRAM: cuPointerGetAttributes. Memory that no peer can map is registered, too: our GPUs copy from there.
func (n *nvlink) RegisterVRAM(addr, length uint64, device int, peers option.Rights) (provider.MR, error) {
	fail := func(err error) (provider.MR, error) {
		return nil, gpu.RangeError(n.dev.Label(), addr, length, device, err)
	}
	m, err := n.gpus.Look(n.dev.Label(), addr, length, device)
	if err != nil {
		return nil, err
	}
	if !n.is.gpus[m.GPU.UUID] {
		return fail(fmt.Errorf("%w: the GPU has not joined the fabric, or has another cluster and clique than %s", provider.ErrNoVRAM, n.dev.Subnet))
	}
	g, err := n.enter(addr, length, peers, m)
	if err != nil {
		return fail(err)
	}
	return g, nil
}

// enter enters memory into the table.
func (n *nvlink) enter(addr, length uint64, peers option.Rights, m *gpu.Range) (*nvRegion, error) {
	n.r.c.UseDriver(m.Driver)
	desc, err := sock.NewVRAM(&m.Mem)
	if err != nil {
		return nil, err
	}
	n.r.mu.Lock()
	g := &nvRegion{rail: n, key: n.r.keys.next(), peers: peers, desc: desc, mem: m}
	closed := n.r.closed
	n.r.mu.Unlock()
	if !closed {
		g.number, err = n.r.c.RegisterVRAM(addr, length, g.key, peers, desc)
	}
	if closed || err != nil {
		sock.FreeVRAM(desc)
		return nil, errors.Join(err, errClosed)
	}
	n.r.regions.Add(1)
	n.mu.Lock()
	n.regions[g.number] = g
	n.mu.Unlock()
	return g, nil
}

// Key implements provider.MR.
func (g *nvRegion) Key(salt provider.Salt) uint64 { return sock.SessionKey(salt, g.key, g.number) }

// Base returns the region's number in the upper bits.
func (g *nvRegion) Base() uint64 { return uint64(g.number) << sock.OffsetBits }

func (g *nvRegion) Desc() unsafe.Pointer { return g.desc }
func (g *nvRegion) Same() error          { return g.mem.Same() }

// Close ends the confirmation of copies, and waits for our own copies. Peers have unmapped the memory before, or the engine says that they have not.
func (g *nvRegion) Close() (err error) {
	g.once.Do(func() {
		n := g.rail
		n.mu.Lock()
		delete(n.regions, g.number)
		n.mu.Unlock()
		g.lends.Lock()
		g.closed = true
		g.lends.Unlock()
		if err = n.r.c.Deregister(g.number); err != nil {
			err = n.r.error(provider.ErrRegister, fmt.Errorf("a copy by the GPU has not ended within a second: %w", err))
		}
		n.r.c.RetireVRAM(g.desc)
		n.r.regions.Add(-1)
	})
	return err
}

// Handles implements provider.Lender.
func (n *nvlink) Handles(salt provider.Salt, key, base uint64, first, most int) (out provider.Handles, err error) {
	n.mu.Lock()
	g := n.regions[uint32(base>>sock.OffsetBits)]
	n.mu.Unlock()
	if g == nil || g.Key(salt) != key {
		return out, gpu.Changed
	}
	if g.peers != option.PeersBoth { // whoever imports a handle chooses whether to write
		return out, gpu.NotBoth
	}
	g.lends.RLock()
	defer g.lends.RUnlock()
	if g.closed {
		return out, gpu.Changed
	}
	d := g.mem.Driver
	share, err := d.FabricShare(g.mem.Mem)
	if err != nil {
		return out, err
	}
	handles, sizes, err := d.FabricHandles(g.mem.Mem, first, most)
	if err != nil {
		if gpu.Is(err, gpu.Changed) {
			n.mapper.noteChanged()
		} else {
			n.warn(fmt.Sprintf("memory of GPU %d has a handle for NVLink between hosts, and the driver does not export it: peers reach the memory another way: %v%s", g.mem.Device, err, remedy(err)))
			err = gpu.NoFabric
		}
		return out, err
	}
	out.Share = share[:]
	for i := range handles {
		out.List = append(out.List, handles[i][:]...)
		out.List = binary.LittleEndian.AppendUint64(out.List, sizes[i])
	}
	return out, nil
}

// decodeHandles is the inverse of what Handles does.
func decodeHandles(list []byte) (handles []gpu.Handle, sizes []uint64) {
	for ; len(list) >= wire.HandleSize; list = list[wire.HandleSize:] {
		handles = append(handles, gpu.Handle(list[:64]))
		sizes = append(sizes, binary.LittleEndian.Uint64(list[64:]))
	}
	return handles, sizes
}

// remedy says what to do about the driver's refusal of a fabric handle.
func remedy(err error) string {
	f := (*gpu.Fault)(nil)
	if !errors.As(err, &f) {
		return ""
	}
	switch f.Result {
	case 101:
		return " (the two processes are not in one IMEX domain, or are containers of one node: nvidia-imex-ctl -N shows the domain; both need the same channel number)"
	case 800:
		return " (no IMEX channel of that domain may be used here: ls -l " + gpu.DefaultIMEX + ", and give both containers one ComputeDomain)"
	case 801:
		return " (the IMEX daemon is not running, or its domain is not up: systemctl status nvidia-imex; nvidia-imex-ctl -N)"
	}
	return ""
}

// Changed, Mapping and LastError implement provider.Mapper.
func (n *nvlink) Changed() <-chan struct{} { return n.mapper.changed }
func (n *nvlink) Mapping() bool            { return n.r.c.Mapping() }
func (n *nvlink) LastError() string        { return n.r.c.LastError() }

// warn is a warning, once for each text.
func (n *nvlink) warn(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.warned[text] && len(n.warned) < 64 {
		n.warned[text] = true
		n.warns = append(n.warns, text)
	}
}

// Warnings implements provider.Reporter.
func (n *nvlink) Warnings() []string {
	all := n.r.Warnings()
	n.mu.Lock()
	defer n.mu.Unlock()
	all, n.warns = append(all, n.warns...), nil
	return all
}

// Limited implements provider.Reporter.
func (n *nvlink) Limited() map[limits.Limit]uint64 { return n.r.Limited() }

// Packed implements provider.Reporter: nothing is.
func (n *nvlink) Packed() (before, after uint64) { return 0, 0 }

// Close implements provider.Rail.
func (n *nvlink) Close() error {
	if n.r.endpoints.Load() == 0 && n.r.regions.Load() == 0 {
		n.mapper.end()
	}
	if err := n.r.Close(); err != nil {
		return err
	}
	if err := n.gpus.Close(); err != nil {
		return n.r.error(provider.ErrUnusable, err)
	}
	return nil
}
