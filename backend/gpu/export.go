package gpu

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Owns tells whether a share says that it is of memory of this process.
func (d *Driver) Owns(s *Share) bool { return s.is().owner == d.owner() }

// Unshared is what peers are told of memory that no other process can map, for that reason; 0: it is not known yet.
func Unshared(m *Mem, uuid [16]byte, why Why) (s Share) {
	c := s.is()
	c.base, c.size, c.buffer, c.from = m.Base, m.Size, m.Buffer, uint32(why)
	if why != 0 {
		c.gpu = uuid
	}
	return s
}

// Share implements cuIpcGetMemHandle, for memory with a fabric handle cuMemExportToShareableHandle, and for other VMM memory nothing: see
// Pieces. The error says why it can't be shared.
func (d *Driver) Share(m Mem) (Share, error) {
	var s Share
	if err := d.share(&m, s.is()); err != nil {
		return Share{}, fmt.Errorf("GPU %d: %w", m.Device, err)
	}
	return s, nil
}

func (d *Driver) share(m *Mem, out *shared) error {
	if m.how == 0 {
		return unshareable(m, "share", Unknown)
	}
	of, err := d.device(m.Device)
	if err != nil {
		return err
	}
	if err := d.Same(m.Base, m.Buffer); err != nil {
		return err
	}
	switch m.how {
	case byIPC:
		err = d.within(m.Device, func() error { return d.failed(d.ipcGet(m.Base, &out.handle), "cuIpcGetMemHandle") })
	case byFabric:
		err = d.fabricHandle(m, &out.handle)
	}
	out.version, out.how = shareVersion, m.how
	out.base, out.size, out.buffer, out.pieces = m.Base, m.Size, m.Buffer, uint32(m.Pieces)
	out.owner, out.gpu = d.owner(), of.UUID
	return err
}

// unshareable is why, or what where nothing is known.
func unshareable(m *Mem, call string, what Why) error {
	_ = errors.As(m.NotShared, &what)
	return &Fault{Why: what, Call: call}
}

// fabricHandle is the one that a range of one handle has for the fabric.
func (d *Driver) fabricHandle(m *Mem, out *[64]byte) error {
	handle, r := d.retain(m.Base)
	if r != ok {
		return d.failed(r, "cuMemRetainAllocationHandle")
	}
	defer d.release(handle)
	return d.failed(d.exportFabric(handle, out), "cuMemExportToShareableHandle")
}

// Pieces makes descriptors of n handles from first on, all or none; the caller closes them. Implements cuMemExportToShareableHandle.
func (d *Driver) Pieces(m Mem, first, n int) (fds []int32, sizes []uint64, err error) {
	if n <= 0 || first < 0 {
		return nil, nil, &Fault{Why: BadShare, Call: "pieces"}
	}
	if m.how != byFDs {
		return nil, nil, unshareable(&m, "pieces", BadShare)
	}
	if first > m.Pieces || n > m.Pieces-first {
		return nil, nil, &Fault{Why: BadShare, Call: "pieces"}
	}
	if err := d.Same(m.Base, m.Buffer); err != nil {
		return nil, nil, err
	}
	at := m.Base
	for i := range first + n {
		base, size, is := d.handle(at)
		if !is || base != at || at-m.Base >= m.Size {
			err = &Fault{Why: Changed, Call: "mappings"}
		} else if i >= first {
			var fd int
			if fd, err = d.piece(at); err == nil {
				fds, sizes = append(fds, int32(fd)), append(sizes, size)
			}
		}
		if err != nil {
			for _, fd := range fds {
				_ = unix.Close(int(fd))
			}
			return nil, nil, err
		}
		at = base + size
	}
	return fds, sizes, nil
}

// piece makes a descriptor of the handle that is mapped there.
func (d *Driver) piece(at uint64) (fd int, err error) {
	handle, r := d.retain(at)
	if r != ok {
		return -1, d.failed(r, "cuMemRetainAllocationHandle")
	}
	fd, r = d.exportFD(handle)
	d.release(handle)
	err = d.failed(r, "cuMemExportToShareableHandle")
	if r == osError { // what it says of a full table, too
		err.(*Fault).Why = NoFDs
	}
	return fd, err
}

// DMABuf makes a dmabuf of whole pages round a range, of one handle or several; the caller closes it. offset is where addr is in it. byPCIe is
// for devices that reach the GPU without passing a processor: where GPU and processor have another link beside PCIe (C2C) there are two ways
// to the memory, and whoever registers the wrong one hears of it from failing transfers alone. A driver that knows one way gives
// that. Implements cuMemGetHandleForAddressRange. The error is NoDMABuf where the GPU has none.
func (d *Driver) DMABuf(m Mem, addr, size uint64, byPCIe bool) (fd int, offset uint64, err error) {
	const call = "cuMemGetHandleForAddressRange"
	of, err := d.device(m.Device)
	if err != nil {
		return -1, 0, err
	}
	if !of.DMABuf {
		return -1, 0, &Fault{Why: NoDMABuf, Call: call}
	}
	// What lies beside the range in its pages is not in the region that a device makes of it.
	page := uint64(os.Getpagesize())
	from, end := addr&^(page-1), (addr+size+page-1)&^(page-1)
	err = d.within(m.Device, func() error {
		r := invalidValue
		if byPCIe {
			fd, r = d.rangeFD(from, end-from, rangePCIe)
		}
		if r == invalidValue || r == notSupported {
			fd, r = d.rangeFD(from, end-from, rangePlain)
		}
		return d.failed(r, call)
	})
	if err != nil {
		fd = -1
	}
	return fd, addr - from, err
}

// SyncMemops makes the application's synchronous copies and fills of an allocation end before they return; else a copy within a GPU may not
// have, and a device would read what was there before. VMM memory and pools are left as they are. Implements cuPointerSetAttribute.
func (d *Driver) SyncMemops(m Mem) {
	if _, err := d.device(m.Device); err != nil {
		return
	}
	_ = d.within(m.Device, func() error {
		d.syncMemops(m.Base)
		return nil
	})
}
