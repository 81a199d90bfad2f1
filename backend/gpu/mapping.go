package gpu

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Map is a reference to a peer's memory as mapped for one local GPU. Close ends it. Its methods are safe for concurrent use.
type Map struct{ m *mapping }

// MapState is the state of a Map.
type MapState int

// A mapping of VMM memory is opening until all of its pieces are mapped. The other states are final.
const (
	MapOpening MapState = iota
	MapReady
	MapFailed
)

// valid checks a share. A driver's handles have at least 64 KiB, which limits the number of pieces.
func (s *shared) valid() bool {
	one := (s.how == byIPC || s.how == byFabric) && s.pieces == 1
	return s.version == shareVersion && s.size != 0 && s.base != 0 && s.base+s.size > s.base && s.pieces != 0 &&
		uint64(s.pieces) <= (s.size+0xffff)>>16 && s.pieces <= maxPieces && (one || s.how == byFDs || s.how == byHandles)
}

// Map maps a peer's memory for a local GPU, or counts one more user of the mapping. importer: the caller must bring the pieces
// with Add. Map takes milliseconds. Implements cuIpcOpenMemHandle and cuMemAddressReserve.
func (d *Driver) Map(s Share, device int) (m *Map, importer bool, err error) {
	of, importer, err := d.open(s.fields(), device, nil)
	if err != nil {
		return nil, false, fmt.Errorf("GPU %d: %w", device, err)
	}
	return &Map{of}, importer, nil
}

// MapProved is Map after SamePID: it opens the handle with another process number, and checks the mapping by the owner's
// proof. Layout: the handle does not open. Unproved: it opens other memory, or the application writes to its memory all the time.
func (d *Driver) MapProved(s Share, device int, p Proof) (*Map, error) {
	m, _, err := d.open(s.fields(), device, p.fields())
	if err != nil {
		return nil, fmt.Errorf("GPU %d: %w", device, err)
	}
	return &Map{m}, nil
}

func (d *Driver) open(s *shared, device int, p *proof) (m *mapping, importer bool, err error) {
	if !s.valid() {
		return nil, false, &Fault{Why: BadShare, Call: "share"}
	}
	if _, err := d.info(device); err != nil {
		return nil, false, err
	}
	theirs := d.Find(s.gpu) // a GPU that this process does not see may still be mappable; the driver decides
	if theirs >= 0 {
		if err := d.Peer(device, theirs); err != nil {
			return nil, false, err
		}
	}
	if s.owner == d.owner() {
		if _, err := d.info(theirs); err != nil {
			return nil, false, err
		}
	}
	m = d.mappingOf(s, device, p)
	if importer, err = m.begin(theirs); err != nil {
		_ = m.unref()
		return nil, false, err
	}
	return m, importer, nil
}

// mappingOf returns the mapping of a share with one more reference, or a new mapping that is not begun.
func (d *Driver) mappingOf(s *shared, device int, p *proof) *mapping {
	d.maps.mu.Lock()
	defer d.maps.mu.Unlock()
	i := slices.IndexFunc(d.maps.all, func(m *mapping) bool {
		o := &m.share
		return m.device == device && (m.proof == nil) == (p == nil) && o.base == s.base && o.buffer == s.buffer && o.size == s.size && o.source == s.source && o.how == s.how && o.owner == s.owner
	})
	if i < 0 {
		i = len(d.maps.all)
		d.maps.all = append(d.maps.all, &mapping{d: d, share: *s, device: device, proof: p})
	}
	d.maps.all[i].refs++
	return d.maps.all[i]
}

// begin opens the mapping if no other caller has begun. importer: the caller must bring the pieces.
func (m *mapping) begin(theirs int) (importer bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case MapState(m.state.Load()) == MapFailed:
		return false, &Fault{Why: m.why, Call: "an earlier attempt"}
	case m.begun:
		return false, nil
	}
	m.begun = true
	err = refused(m.d.within(m.device, func() error { return m.open(theirs) }))
	switch {
	case err != nil:
		m.finish(err)
	case m.vmm && len(m.sizes) < int(m.share.pieces):
		return true, nil
	default:
		m.finish(nil)
	}
	return false, err
}

// finish sets the final state. Under mu.
func (m *mapping) finish(err error) {
	if err == nil {
		m.d.maps.opened.Add(1)
		m.state.Store(int32(MapReady))
		return
	}
	m.why = Failed
	_ = errors.As(err, &m.why)
	m.d.maps.failed.Add(1)
	m.state.Store(int32(MapFailed))
}

// refused changes Failed to Refused: the driver works, but does not map the peer's memory.
func refused(err error) error {
	var f *Fault
	if errors.As(err, &f) && f.Why == Failed {
		f.Why = Refused
	}
	return err
}

// Add maps the next pieces. It closes the descriptors in any case. An error makes the mapping fail. A piece takes 0.1 to 10 ms.
// Implements cuMemImportFromShareableHandle, cuMemMap and cuMemSetAccess.
func (p *Map) Add(fds []int32, sizes []uint64) error {
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(int(fd))
		}
	}()
	if len(fds) == 0 || len(fds) != len(sizes) {
		return &Fault{Why: BadShare, Call: "pieces"}
	}
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if MapState(m.state.Load()) != MapOpening || !m.vmm || m.share.how != byFDs {
		return &Fault{Why: BadShare, Call: "pieces"}
	}
	err := refused(m.d.within(m.device, func() error { return m.add(fds, sizes) }))
	if err != nil || m.mapped == m.share.size && len(m.sizes) == int(m.share.pieces) {
		m.finish(err)
	}
	return err
}

// Fail ends an opening mapping with a reason, for all its users.
func (p *Map) Fail(why Why) {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if MapState(p.m.state.Load()) != MapOpening {
		return
	}
	if why == 0 {
		why = Cancelled
	}
	p.m.finish(why)
}

// State returns the state of the mapping, and the reason if the mapping has failed.
func (p *Map) State() (MapState, error) {
	s := MapState(p.m.state.Load())
	if s == MapFailed {
		return s, p.m.why
	}
	return s, nil
}

// At translates an address of the peer to a local address. The mapping must be ready.
func (p *Map) At(addr uint64) uint64 { return addr - p.m.share.base + p.m.at }

// Close ends the reference. The last one unmaps the memory; no copy may be in progress.
func (p *Map) Close() error { return p.m.unref() }

func (m *mapping) unref() error {
	all := &m.d.maps
	all.mu.Lock()
	m.refs--
	left := m.refs
	if left == 0 {
		all.all = slices.DeleteFunc(all.all, func(o *mapping) bool { return o == m })
	}
	all.mu.Unlock()
	if left > 0 || m.identity || m.at == 0 {
		return nil
	}
	return m.d.within(m.device, m.unmap)
}
