package gpu

import (
	"sync"
	"unsafe"
)

// pins are the ranges of host memory that copies use.
type pins struct {
	mu     sync.Mutex
	ranges map[pinned]*pin
}

type pinned struct {
	addr unsafe.Pointer
	size uint64
}

type pin struct {
	refs    int
	foreign bool // pinned by somebody else
}

func (p *pins) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ranges) > 0
}

// Pin makes host memory usable in copies, counted by exact range; what somebody else pinned stays as it is. A GPU must be in use. Implements
// cuMemHostRegister.
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
	m, err := d.what(uint64(uintptr(addr)), size) // Torn: a part of it is pinned
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
