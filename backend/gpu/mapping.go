package gpu

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Map is a peer's memory as one of our GPUs sees it; a reference that Close gives back. Its methods are safe for concurrent use.
type Map struct{ m *mapping }

// MapState of a Map.
type MapState int

// A mapping of VMM memory is opening until all of its pieces are there; the other states are for good.
const (
	MapOpening MapState = iota
	MapReady
	MapFailed
)

// sane: no driver has handles of less than 64 KiB, and the list of them is ours.
func (s *shared) sane() bool {
	one := (s.how == byIPC || s.how == byFabric) && s.pieces == 1
	return s.version == shareVersion && s.size != 0 && s.base != 0 && s.base+s.size > s.base && s.pieces != 0 &&
		uint64(s.pieces) <= (s.size+0xffff)>>16 && s.pieces <= maxPieces && (one || s.how == byFDs)
}

// Map maps a peer's memory for a GPU of ours, or counts one more user of the mapping. importer: this caller shall bring the pieces, by Add.
// Implements cuIpcOpenMemHandle and cuMemAddressReserve; lasts milliseconds.
func (d *Driver) Map(s Share, device int) (m *Map, importer bool, err error) {
	of, importer, err := d.open(s.is(), device)
	if err != nil {
		return nil, false, fmt.Errorf("GPU %d: %w", device, err)
	}
	return &Map{of}, importer, nil
}

func (d *Driver) open(s *shared, device int) (m *mapping, importer bool, err error) {
	if !s.sane() {
		return nil, false, &Fault{Why: BadShare, Call: "share"}
	}
	if _, err := d.device(device); err != nil {
		return nil, false, err
	}
	theirs := d.Find(s.gpu) // a GPU that this process doesn't see may be mappable all the same: the driver knows
	if theirs >= 0 {
		if err := d.Peer(device, theirs); err != nil {
			return nil, false, err
		}
	}
	if s.owner == d.owner() {
		if _, err := d.device(theirs); err != nil {
			return nil, false, err
		}
	}
	m = d.mappingOf(s, device)
	if importer, err = m.begin(theirs); err != nil {
		_ = m.unref()
		return nil, false, err
	}
	return m, importer, nil
}

// mappingOf is one reference more, or a new mapping that nobody has begun.
func (d *Driver) mappingOf(s *shared, device int) *mapping {
	d.maps.mu.Lock()
	defer d.maps.mu.Unlock()
	i := slices.IndexFunc(d.maps.all, func(m *mapping) bool {
		o := &m.share
		return m.device == device && o.base == s.base && o.buffer == s.buffer && o.size == s.size && o.from == s.from && o.how == s.how && o.owner == s.owner
	})
	if i < 0 {
		i = len(d.maps.all)
		d.maps.all = append(d.maps.all, &mapping{d: d, share: *s, device: device})
	}
	d.maps.all[i].refs++
	return d.maps.all[i]
}

// begin opens it, if nobody has. importer: what is left to do is this caller's.
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
	err = refused(m.d.within(m.device, func() error { return m.make(theirs) }))
	switch {
	case err != nil:
		m.end(err)
	case m.vmm && len(m.sizes) < int(m.share.pieces):
		return true, nil
	default:
		m.end(nil)
	}
	return false, err
}

// end gives it its last state. With mu.
func (m *mapping) end(err error) {
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

// refused tells what the driver says no to when a peer's memory can't be had from its being broken.
func refused(err error) error {
	var f *Fault
	if errors.As(err, &f) && f.Why == Failed {
		f.Why = Refused
	}
	return err
}

// Add maps the next pieces; the descriptors are closed whatever comes of it. An error makes the mapping fail. 0.1 to 10 ms a piece. Implements
// cuMemImportFromShareableHandle, cuMemMap and cuMemSetAccess.
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
	if MapState(m.state.Load()) != MapOpening || !m.vmm {
		return &Fault{Why: BadShare, Call: "pieces"}
	}
	err := refused(m.d.within(m.device, func() error { return m.add(fds, sizes) }))
	if err != nil || m.mapped == m.share.size && len(m.sizes) == int(m.share.pieces) {
		m.end(err)
	}
	return err
}

// Fail gives up bringing pieces: it has failed for all who share it.
func (p *Map) Fail(why Why) {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if MapState(p.m.state.Load()) != MapOpening {
		return
	}
	if why == 0 {
		why = Cancelled
	}
	p.m.end(why)
}

// State is whether the mapping can be used, and if it has failed, why.
func (p *Map) State() (MapState, error) {
	s := MapState(p.m.state.Load())
	if s == MapFailed {
		return s, p.m.why
	}
	return s, nil
}

// At is where the peer's address is here; once the mapping is ready.
func (p *Map) At(addr uint64) uint64 { return addr - p.m.share.base + p.m.at }

// Close gives the reference back; with the last the memory is unmapped, and no copy may be under way.
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
	return m.d.within(m.device, m.undo)
}
