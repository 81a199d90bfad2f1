package gpu

// make maps it, but for pieces that another process has to send. Within the context, with mu.
func (m *mapping) make(theirs int) error {
	d, s := m.d, &m.share
	switch {
	case s.owner == d.owner():
		return m.own(theirs)
	case s.how == byFDs:
		return m.reserve()
	case s.how == byFabric:
		return m.ofHandle()
	}
	at, r := d.ipcOpen(&s.handle)
	if r != ok {
		return d.failed(r, "cuIpcOpenMemHandle")
	}
	m.at = at
	// The size is the peer's word, and a copy beyond the end would end CUDA for this process.
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

// place puts a handle behind those mapped already; the handle is the caller's to release.
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

func (m *mapping) access(at, size uint64) error {
	return m.d.failed(m.d.calls.access(at, size, m.device), "cuMemSetAccess")
}

// own maps memory of this process. A peer may say that its memory is ours: it has to be there.
func (m *mapping) own(theirs int) error {
	d, s := m.d, &m.share
	is, err := d.what(s.base, s.size)
	if err != nil {
		return err
	}
	if is.Buffer != s.buffer || is.how != s.how || is.Pieces != int(s.pieces) || is.Device != theirs {
		return &Fault{Why: Changed, Call: "memory of this process"}
	}
	if theirs != m.device && s.how != byIPC {
		return m.again()
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

// again maps VMM memory of this process for another GPU of it, so that the application's mapping stays as it is.
func (m *mapping) again() error {
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

// ofHandle maps memory that its handle in the share is all of.
func (m *mapping) ofHandle() error {
	if err := m.reserve(); err != nil {
		return err
	}
	handle, r := m.d.importFabric(&m.share.handle)
	if r != ok {
		return m.d.failed(r, "cuMemImportFromShareableHandle")
	}
	err := m.place(handle, m.share.size)
	m.d.release(handle) // the mapping keeps the memory
	m.d.maps.imports.Add(1)
	if err != nil {
		return err
	}
	return m.access(m.at, m.share.size)
}

func (m *mapping) add(fds []int32, sizes []uint64) error {
	from := m.mapped
	for i, fd := range fds {
		handle, r := m.d.importFD(int(fd))
		if r != ok {
			return m.d.failed(r, "cuMemImportFromShareableHandle")
		}
		err := m.place(handle, sizes[i])
		m.d.release(handle) // the mapping keeps the memory
		m.d.maps.imports.Add(1)
		if err != nil {
			return err
		}
	}
	return m.access(m.at+from, m.mapped-from)
}

// undo unmaps what there is of it, and returns the last error.
func (m *mapping) undo() (err error) {
	note := func(r result, call string) {
		if r != ok {
			err = m.d.failed(r, call)
		}
	}
	if !m.vmm {
		note(m.d.ipcClose(m.at), "cuIpcCloseMemHandle")
		return err
	}
	at := m.at
	for _, size := range m.sizes {
		note(m.d.unmapAt(at, size), "cuMemUnmap")
		at += size
	}
	note(m.d.unreserve(m.at, m.share.size), "cuMemAddressFree")
	return err
}
