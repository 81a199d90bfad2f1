package gpu

import (
	"fmt"
	"slices"
)

// Memory of GPUs of other hosts, over NVLink. Its owner exports a fabric handle of each VMM handle behind a range, and the importer maps them
// end to end, as it maps descriptors.

// Handle is a CUmemFabricHandle: any process in the IMEX domain that has it may map the memory.
type Handle [64]byte

// Lendable says why no process of another host can map the memory; nil: the driver may give handles.
func (d *Driver) Lendable(m *Mem) error {
	if m.fabric {
		return nil
	}
	return NotAway
}

// FabricShare describes memory for a process of another host. It needs FabricHandles for each of Share.Pieces.
func (d *Driver) FabricShare(m Mem) (Share, error) {
	var s Share
	if err := d.Lendable(&m); err != nil {
		return s, err
	}
	of := &Device{} // host memory has none
	if m.Kind != HostMemory {
		var err error
		if of, err = d.info(m.Device); err != nil {
			return s, err
		}
	}
	*s.fields() = shared{version: shareVersion, how: byHandles, base: m.Base, size: m.Size, buffer: m.Buffer, owner: d.owner(), gpu: of.UUID, pieces: uint32(m.Pieces)}
	return s, nil
}

// From marks a share with its sender: mappings are never shared between senders.
func (s *Share) From(sender uint32) { s.fields().source = sender }

// Covers reports that a range of the owner's addresses is in the memory.
func (s *Share) Covers(addr, size uint64) bool {
	f := s.fields()
	return addr >= f.base && addr-f.base <= f.size && size <= f.size-(addr-f.base)
}

// FabricHandles exports up to n handles from first on, with their sizes. Implements cuMemRetainAllocationHandle, cuMemExportToShareableHandle.
func (d *Driver) FabricHandles(m Mem, first, n int) (handles []Handle, sizes []uint64, err error) {
	if err := d.Lendable(&m); err != nil {
		return nil, nil, err
	}
	if first < 0 || first >= len(m.parts) {
		return nil, nil, &Fault{Why: BadShare, Call: "fabric handles"}
	}
	for _, p := range m.parts[first:min(first+n, len(m.parts))] {
		h, err := d.fabricOf(p)
		if err != nil {
			return nil, nil, fmt.Errorf("memory at %#x: %w", p.base, err)
		}
		handles, sizes = append(handles, h), append(sizes, p.end-p.base)
	}
	return handles, sizes, nil
}

// fabricOf exports the handle of a part. The part is what it was before and after: the handle is that memory's.
func (d *Driver) fabricOf(p part) (out Handle, err error) {
	if err := d.Same(p.base, p.buffer); err != nil {
		return out, err
	}
	if err := d.exportFabricAt(p.base, (*[64]byte)(&out)); err != nil {
		return out, err
	}
	return out, d.Same(p.base, p.buffer)
}

// AddHandles is Add for memory of another host. Implements cuMemImportFromShareableHandle, cuMemMap and cuMemSetAccess.
func (p *Map) AddHandles(handles []Handle, sizes []uint64) error {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(handles) == 0 || len(handles) != len(sizes) || MapState(m.state.Load()) != MapOpening || m.share.how != byHandles {
		return &Fault{Why: BadShare, Call: "fabric handles"}
	}
	err := refused(m.d.within(m.device, func() error { return m.addHandles(handles, sizes) }))
	if err != nil || m.mapped == m.share.size && len(m.sizes) == int(m.share.pieces) {
		m.finish(err)
	}
	return err
}

func (m *mapping) addHandles(handles []Handle, sizes []uint64) error {
	from := m.mapped
	for i := range handles {
		handle, r := m.d.importFabric((*[64]byte)(&handles[i]))
		if r != ok {
			return m.d.failed(r, "cuMemImportFromShareableHandle")
		}
		if err := m.placeImport(handle, sizes[i]); err != nil {
			return err
		}
	}
	return m.access(m.at+from, m.mapped-from)
}

// TryFabric makes memory with a fabric handle on each of the GPUs that this process sees, exports the handle, and frees the memory. It makes no
// context. Implements cuMemCreate, cuMemExportToShareableHandle.
func TryFabric(path string, on []FabricInfo) error {
	d, err := Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	for i := range d.Devices() {
		number, r := d.get(i)
		uuid, s := d.uuid(number)
		if r != ok || s != ok || !slices.ContainsFunc(on, func(f FabricInfo) bool { return f.UUID == uuid }) {
			continue
		}
		handle, r := d.create(number, granule, handleFabric)
		if r != ok {
			return fmt.Errorf("GPU %d: %w", i, d.failed(r, "cuMemCreate"))
		}
		var out Handle
		r = d.exportFabric(handle, (*[64]byte)(&out))
		d.release(handle)
		if r != ok {
			return fmt.Errorf("GPU %d: %w", i, d.failed(r, "cuMemExportToShareableHandle"))
		}
	}
	return nil
}
