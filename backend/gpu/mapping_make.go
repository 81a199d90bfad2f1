package gpu

// open maps the memory, except for pieces that another process has to send. Within the context, under mu.
func (m *mapping) open(theirs int) error {
	d, s := m.d, &m.share
	switch {
	case s.owner == d.owner():
		return m.mapOwn(theirs)
	case s.how == byFDs || s.how == byHandles:
		return m.reserve()
	case s.how == byFabric:
		return m.mapFabric()
	}
	at, r := d.ipcOpen(&s.handle, s.size)
	switch {
	case r == invalidContext:
		return m.openReplaced(theirs)
	case r != ok:
		return m.hidden(r, invalidValue, "cuIpcOpenMemHandle", theirs)
	}
	m.at = at
	return m.checkSize()
}

// hidden makes the error of a refused import. result is what the driver says if the device node of the memory's GPU is hidden.
func (m *mapping) hidden(r, result result, call string, theirs int) error {
	if r == result && theirs < 0 {
		return &Fault{Why: Unseen, Result: int(r), Call: call, Text: m.d.errorName(r)}
	}
	return m.d.failed(r, call)
}

// checkSize compares memory of an IPC handle with the share. The size comes from the peer. A copy beyond the end would end
// CUDA for this process.
func (m *mapping) checkSize() error {
	d, s, at := m.d, &m.share, m.at
	start, r := d.attr(attrStart, at)
	if r != ok {
		return d.failed(r, "cuPointerGetAttribute")
	}
	size, r := d.attr(attrSize, at)
	if r != ok {
		return d.failed(r, "cuPointerGetAttribute")
	}
	if start != at || size < s.size {
		return &Fault{Why: BadShare, Call: "size of the allocation"}
	}
	return nil
}

func (m *mapping) reserve() (err error) {
	at, r := m.d.reserve(m.share.size)
	if r != ok {
		return m.d.failed(r, "cuMemAddressReserve")
	}
	m.at, m.vmm = at, true
	return nil
}

// place maps a handle behind the mapped pieces. The caller releases the handle.
func (m *mapping) place(handle, size uint64) error {
	have, left := len(m.sizes), m.share.size-m.mapped
	if have == int(m.share.pieces) || size == 0 || size > left || have+1 == int(m.share.pieces) && size != left {
		return &Fault{Why: BadShare, Call: "size of a piece"}
	}
	if r := m.d.mapAt(m.at+m.mapped, size, handle); r != ok {
		return m.d.failed(r, "cuMemMap")
	}
	m.sizes = append(m.sizes, size)
	m.mapped += size
	return nil
}

// placeImport is place for a handle that was imported, and releases it: the mapping keeps the memory alive.
func (m *mapping) placeImport(handle, size uint64) error {
	defer m.d.release(handle)
	m.d.maps.imports.Add(1)
	return m.place(handle, size)
}

func (m *mapping) access(at, size uint64) error {
	return m.d.failed(m.d.calls.access(at, size, m.device), "cuMemSetAccess")
}

// mapOwn maps memory of this process. The share may come from a peer, so check that the memory exists.
func (m *mapping) mapOwn(theirs int) error {
	d, s := m.d, &m.share
	is, err := d.what(s.base, s.size)
	if err != nil {
		return err
	}
	if is.Buffer != s.buffer || is.how != s.how || is.Pieces != int(s.pieces) || is.Device != theirs {
		return &Fault{Why: Changed, Call: "memory of this process"}
	}
	if theirs != m.device && s.how != byIPC {
		return m.mapAgain()
	}
	m.identity, m.at = true, s.base
	if theirs == m.device {
		return nil
	}
	if r := d.enablePeer(theirs); r != ok && r != peerEnabled {
		return d.failed(r, "cuCtxEnablePeerAccess")
	}
	return nil
}

// mapAgain maps VMM memory of this process for another GPU of it. The application's mapping does not change.
func (m *mapping) mapAgain() error {
	if err := m.reserve(); err != nil {
		return err
	}
	for m.mapped < m.share.size {
		from := m.share.base + m.mapped
		base, size, is := m.d.handle(from)
		if !is || base != from {
			return &Fault{Why: Changed, Call: "mappings"}
		}
		handle, r := m.d.retain(from)
		if r != ok {
			return m.d.failed(r, "cuMemRetainAllocationHandle")
		}
		err := m.place(handle, size)
		m.d.release(handle)
		if err != nil {
			return err
		}
	}
	return m.access(m.at, m.share.size)
}

// mapFabric maps memory by the fabric handle in the share.
func (m *mapping) mapFabric() error {
	if err := m.reserve(); err != nil {
		return err
	}
	handle, r := m.d.importFabric(&m.share.handle)
	if r != ok {
		return m.d.failed(r, "cuMemImportFromShareableHandle")
	}
	if err := m.placeImport(handle, m.share.size); err != nil {
		return err
	}
	return m.access(m.at, m.share.size)
}

func (m *mapping) add(fds []int32, sizes []uint64) error {
	from := m.mapped
	for i, fd := range fds {
		handle, r := m.d.importFD(int(fd))
		if r != ok {
			return m.hidden(r, invalidDevice, "cuMemImportFromShareableHandle", m.d.Find(m.share.gpu))
		}
		if err := m.placeImport(handle, sizes[i]); err != nil {
			return err
		}
	}
	return m.access(m.at+from, m.mapped-from)
}

// unmap undoes open and the added pieces, and returns the last error.
func (m *mapping) unmap() (err error) {
	record := func(r result, call string) {
		if r != ok {
			err = m.d.failed(r, call)
		}
	}
	if !m.vmm {
		record(m.d.ipcClose(m.at), "cuIpcCloseMemHandle")
		return err
	}
	at := m.at
	for _, size := range m.sizes {
		record(m.d.unmapAt(at, size), "cuMemUnmap")
		at += size
	}
	record(m.d.unreserve(m.at, m.share.size), "cuMemAddressFree")
	return err
}
