package gpu

import (
	"fmt"
	"unsafe"
)

// Device describes one GPU.
type Device struct {
	Name     string
	UUID     [16]byte
	PCI      string // in the format of sysfs: 0000:3b:00.0
	SMs      int
	Memory   uint64 // bytes
	DMABuf   bool   // dmabufs are supported
	Flush    bool   // the GPU's work sees other devices' writes in order only after Driver.Flush
	Kernel   bool   // the copy kernel is loaded; false: copy engines are used, and NoKernel is the driver's error name
	NoKernel string
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
		return Mem{}, fmt.Errorf("memory at %#x, %d bytes: %w", addr, size, err)
	}
	return m, nil
}

func (d *Driver) what(addr, size uint64) (Mem, error) {
	kept, m, has := d.registrations.known(memRange{addr, size})
	if has {
		return m, nil
	}
	m, err := d.ask(addr, size)
	if err == nil {
		d.registrations.learn(kept, m)
	}
	return m, err
}

func (d *Driver) ask(addr, size uint64) (Mem, error) {
	if addr+size < addr {
		return Mem{}, &Fault{Why: Torn, Call: "range"}
	}
	p, r := d.pointer(addr)
	if r != ok {
		return Mem{}, d.failed(r, "cuPointerGetAttributes")
	}
	if p.kind == 0 {
		return Mem{Device: -1}, nil
	}
	m := Mem{Kind: HostMemory, Device: -1, Base: p.start, Size: p.size, Buffer: p.buffer, Pieces: 1, NotShared: Pinned}
	if p.kind != typeHost {
		m.Device = p.device
		vmm, err := d.kindOf(addr, size, p.managed, &m)
		if vmm || err != nil {
			return m, err
		}
	}
	if addr < m.Base || size > m.Size-(addr-m.Base) {
		return Mem{}, &Fault{Why: Torn, Call: "range"}
	}
	if m.Kind != HostMemory {
		m.parts = []part{{m.Base, m.Base + m.Size, m.Buffer}}
	}
	return m, nil
}

// kindOf determines the kind of GPU memory. vmm: m is complete.
func (d *Driver) kindOf(addr, size uint64, managed bool, m *Mem) (vmm bool, err error) {
	if managed {
		m.Kind, m.NotShared = ManagedMemory, Managed
		return false, nil
	}
	if handle, r := d.retain(addr); r == ok {
		d.release(handle)
		return true, d.vmm(addr, size, m)
	}
	if pool, r := d.attr(attrPool, addr); r == ok && pool != 0 {
		m.Kind, m.NotShared = PoolMemory, Pool
		return false, nil
	}
	m.Kind, m.NotShared, m.how = DeviceMemory, nil, byIPC
	return false, nil
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
	fabric := types&handleFD == 0 && types&handleFabric != 0 && d.hasFabric(m.Device)
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
// GPU must be in use. Implements cuMemHostRegister.
func (d *Driver) Pin(addr unsafe.Pointer, size uint64) error {
	d.pins.mu.Lock()
	defer d.pins.mu.Unlock()
	at := pinned{addr, size}
	if p := d.pins.ranges[at]; p != nil {
		p.refs++
		return nil
	}
	foreign, err := d.pin(addr, size)
	if err != nil {
		return err
	}
	if d.pins.ranges == nil {
		d.pins.ranges = map[pinned]*pin{}
	}
	d.pins.ranges[at] = &pin{1, foreign}
	return nil
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

// Unpin ends one Pin of the same range. Implements cuMemHostUnregister.
func (d *Driver) Unpin(addr unsafe.Pointer, size uint64) error {
	d.pins.mu.Lock()
	defer d.pins.mu.Unlock()
	at := pinned{addr, size}
	p := d.pins.ranges[at]
	if p == nil {
		return &Fault{Why: Unknown, Call: "unpin"}
	}
	if p.refs--; p.refs > 0 {
		return nil
	}
	delete(d.pins.ranges, at)
	if p.foreign {
		return nil
	}
	return d.within(d.first(), func() error { return d.failed(d.hostUnregister(addr), "cuMemHostUnregister") })
}
