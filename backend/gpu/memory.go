package gpu

import (
	"fmt"
	"time"
	"unsafe"
)

// Device describes one GPU.
type Device struct {
	Name   string
	UUID   [16]byte
	PCI    string // in the format of sysfs: 0000:3b:00.0
	SMs    int
	Memory uint64 // bytes
	DMABuf bool   // dmabufs are supported
	Flush  bool   // the GPU's work sees other devices' writes in order only after Driver.Flush
}

// Find returns the ordinal of the GPU with that UUID; -1: this process does not see it.
func (d *Driver) Find(uuid [16]byte) int {
	for i := range d.Devices() {
		if device, r := d.get(i); r == ok {
			if u, r := d.uuid(device); r == ok && u == uuid {
				return i
			}
		}
	}
	return -1
}

// Peer checks that GPU a can map and access memory of GPU b. The error is NoPeer. Implements cuDeviceCanAccessPeer.
func (d *Driver) Peer(a, b int) error {
	if a == b {
		return nil
	}
	if n := d.Devices(); a < 0 || b < 0 || a >= n || b >= n {
		return &Fault{Why: NoDevice, Call: "ordinal"}
	}
	da, r := d.get(a)
	if r != ok {
		return d.failed(r, "cuDeviceGet")
	}
	db, r := d.get(b)
	if r != ok {
		return d.failed(r, "cuDeviceGet")
	}
	can, r := d.canAccess(da, db)
	if r != ok {
		return d.failed(r, "cuDeviceCanAccessPeer")
	}
	if !can {
		return &Fault{Why: NoPeer, Call: "cuDeviceCanAccessPeer"}
	}
	return nil
}

// Kind is a type of memory.
type Kind int

// Kinds of memory. The driver does not know UnknownMemory. HostMemory is pinned.
const (
	UnknownMemory Kind = iota
	HostMemory
	ManagedMemory
	DeviceMemory
	VMMMemory
	PoolMemory
)

func (k Kind) String() string {
	return [...]string{"pageable host memory", "pinned host memory", "managed memory", "device memory (cuMemAlloc)",
		"device memory (VMM)", "device memory of a pool (cudaMallocAsync)"}[k]
}

// Mem describes a range of memory. For UnknownMemory, only Kind and Device are set.
type Mem struct {
	Kind       Kind
	Device     int    // ordinal; -1: none
	Base, Size uint64 // of the allocation; VMM: of all handles that the range touches, end to end
	Buffer     uint64 // id of the allocation, unique in a process; VMM: of the first handle
	Pieces     int    // VMM: number of handles
	NotShared  error  // a Why: why no other process can map the memory; nil: other processes can
	fabric     bool   // all of its handles may have fabric handles
	how        uint32 // how a peer can map the memory: byIPC ..., or 0
	parts      []part // what was mapped there; nil: host memory
}

// Registering lets What give the same answer about a range until end is called. The application does not map other memory there
// while it registers the range. Each rail asks, and so does staging: 0.1 ms each time for VMM memory of a thousand handles.
func (d *Driver) Registering(addr, size uint64) (end func()) {
	return d.registrations.begin(memRange{addr, size})
}

// What describes the memory [addr, addr+size), without making a context. Torn: the range spans several allocations, or goes
// beyond the end of one. Implements cuPointerGetAttributes.
func (d *Driver) What(addr, size uint64) (Mem, error) {
	m, err := d.what(addr, size)
	if err != nil {
		return Mem{}, unknownRange(addr, size, err)
	}
	return m.Mem, nil
}

func unknownRange(addr, size uint64, err error) error {
	return fmt.Errorf("memory at %#x, %d bytes: %w", addr, size, err)
}

func (d *Driver) what(addr, size uint64) (*Range, error) {
	kept, m := d.registrations.known(memRange{addr, size})
	if m != nil {
		return m, nil
	}
	m, err := d.ask(addr, size)
	if err != nil {
		return nil, err
	}
	d.registrations.learn(kept, m)
	return m, nil
}

// ask asks the driver, and looks for the GPU if it is in use.
func (d *Driver) ask(addr, size uint64) (*Range, error) {
	if addr+size < addr {
		return nil, &Fault{Why: Torn, Call: "range"}
	}
	plain := d.proofs.plain.Load()
	p, vmm, pool, r := d.look(addr, plain)
	if r != ok {
		return nil, d.failed(r, "cuPointerGetAttributes")
	}
	of := &Range{Driver: d, Mem: Mem{Device: -1}}
	m := &of.Mem
	if p.kind == 0 {
		return of, nil
	}
	*m = Mem{Kind: HostMemory, Device: -1, Base: p.start, Size: p.size, Buffer: p.buffer, Pieces: 1, NotShared: Pinned}
	if p.kind != typeHost {
		m.Device = p.device
		if p.device >= 0 && p.device < len(d.infos) {
			of.GPU = d.infos[p.device].Load()
		}
		switch {
		case p.managed:
			m.Kind, m.NotShared = ManagedMemory, Managed
		case vmm:
			return of, d.vmm(addr, size, m)
		case pool:
			m.Kind, m.NotShared = PoolMemory, Pool
		default:
			m.Kind, m.NotShared, m.how = DeviceMemory, nil, byIPC
		}
	}
	if addr < m.Base || size > m.Size-(addr-m.Base) {
		return nil, &Fault{Why: Torn, Call: "range"}
	}
	if m.Kind != HostMemory {
		m.parts = []part{{m.Base, m.Base + m.Size, m.Buffer}}
	}
	return of, nil
}

// vmm describes VMM memory: the handles from the one at addr to the one of the range's last byte, and how they can be shared.
func (d *Driver) vmm(addr, size uint64, m *Mem) (err error) {
	m.Kind = VMMMemory
	var types uint64 // handle types that all of the handles support
	var are bool
	if m.parts, types, are = d.parts(addr, addr+max(size, 1), m.Device); !are {
		return &Fault{Why: Torn, Call: "range of VMM memory"}
	}
	m.Pieces = len(m.parts)
	m.Base, m.Size = m.parts[0].base, m.parts[m.Pieces-1].end-m.parts[0].base
	m.Buffer = m.parts[0].buffer
	m.fabric = types&handleFabric != 0 && d.hasFabric(m.Device)
	fabric := types&handleFD == 0 && m.fabric
	switch {
	case types&handleFD != 0:
		m.how, m.NotShared = byFDs, nil
	case fabric && m.Pieces == 1:
		m.how, m.NotShared = byFabric, nil
	case fabric:
		m.NotShared = Fabrics
	default:
		m.NotShared = NoHandle
	}
	return nil
}

func (d *Driver) hasFabric(ordinal int) bool {
	device, r := d.get(ordinal)
	return r == ok && d.fabric(device)
}

// Fabric reports that the memory can be shared only by a handle for NVLink between hosts. Share reports whether the driver
// gives that handle.
func (m *Mem) Fabric() bool { return m.how == byFabric }

// Pin makes host memory usable in copies. Pins are counted by exact range. Memory that other code has pinned stays as it is. A
// GPU must be in use. Busy: an earlier call about memory of the range has not returned within pinPatience. Implements cuMemHostRegister.
func (d *Driver) Pin(addr unsafe.Pointer, size uint64) error {
	at := pinned{addr, size}
	p, err := d.pins.begin(at)
	if p == nil || err != nil {
		return err
	}
	foreign, err := d.pin(addr, size)
	d.pins.mu.Lock()
	defer d.pins.mu.Unlock()
	if p.foreign = foreign; err != nil {
		delete(d.pins.ranges, at)
	}
	p.settle()
	return err
}

// pinPatience bounds the wait for calls of the driver about memory that is to be pinned. A GPU that does not end its work keeps them for
// ever.
const pinPatience = 30 * time.Second

// begin counts a pin of a range that is pinned: p is nil. Otherwise the caller makes the driver call for p, without the lock: it may wait
// for all work of the GPUs, and other ranges must not wait for that. begin waits for calls about memory of the range.
func (p *pins) begin(at pinned) (fresh *pin, err error) {
	var late <-chan time.Time
	for {
		fresh, call := p.enter(at)
		if call == nil {
			return fresh, nil
		}
		if late == nil {
			late = time.After(pinPatience)
		}
		select {
		case <-call:
		case <-late:
			return nil, &Fault{Why: Busy, Call: "an earlier call about memory of the range has not returned"}
		}
	}
}

// enter is one step of begin. call: closed when a driver call about memory of the range has returned.
func (p *pins) enter(at pinned) (fresh *pin, call <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r, o := range p.ranges {
		if o.call != nil && r.overlaps(at) {
			return nil, o.call
		}
	}
	if is := p.ranges[at]; is != nil {
		is.refs++
		return nil, nil
	}
	if p.ranges == nil {
		p.ranges = map[pinned]*pin{}
	}
	fresh = &pin{refs: 1, call: make(chan struct{})}
	p.ranges[at] = fresh
	return fresh, nil
}

// settle ends a driver call. Under mu.
func (p *pin) settle() {
	close(p.call)
	p.call = nil
}

func (a pinned) overlaps(b pinned) bool {
	x, y := uint64(uintptr(a.addr)), uint64(uintptr(b.addr))
	return x < y+b.size && y < x+a.size
}

func (d *Driver) pin(addr unsafe.Pointer, size uint64) (foreign bool, err error) {
	const call = "cuMemHostRegister"
	first := d.first()
	if first < 0 {
		return false, &Fault{Why: NoDevice, Call: "no GPU is in use yet"}
	}
	err = d.within(first, func() error {
		r := d.hostRegister(addr, size)
		foreign = r == hostRegistered
		if foreign {
			return nil
		}
		return d.failed(r, call)
	})
	if err != nil || !foreign {
		return false, err
	}
	m, err := d.what(uint64(uintptr(addr)), size) // Torn: only a part is pinned
	if err == nil && m.Kind != HostMemory {
		err = &Fault{Why: Torn, Call: call}
	}
	return true, err
}

// Unpin ends one Pin of the same range. The range stays known until the driver call has returned, and the driver open: the call may wait
// for all work of the GPUs. Implements cuMemHostUnregister.
func (d *Driver) Unpin(addr unsafe.Pointer, size uint64) error {
	at := pinned{addr, size}
	p, last := d.pins.end(at)
	if p == nil {
		return &Fault{Why: Unknown, Call: "unpin"}
	}
	if !last {
		return nil
	}
	err := d.within(d.first(), func() error { return d.failed(d.hostUnregister(addr), "cuMemHostUnregister") })
	d.pins.mu.Lock()
	defer d.pins.mu.Unlock()
	delete(d.pins.ranges, at)
	p.settle()
	return err
}

// end ends one pin. last: the caller makes the driver call that ends it, without the lock.
func (p *pins) end(at pinned) (is *pin, last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if is = p.ranges[at]; is == nil || is.call != nil {
		return nil, false
	}
	if is.refs--; is.refs > 0 {
		return is, false
	}
	if is.foreign {
		delete(p.ranges, at)
		return is, false
	}
	is.call = make(chan struct{})
	return is, true
}
