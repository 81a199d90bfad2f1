package nixlapi

// withRegList calls f with a registration list, created in one cgo call.
func withRegList(mem Mem, d []Desc, meta string, f func(list ptr) Status) Status {
	l, s := cRegList(mem, d, meta)
	if l != nil {
		defer cDestroyRegList(l)
	}
	if s != Success {
		return s
	}
	return f(l)
}

// withOpt calls f with optional arguments.
func withOpt(b *Backend, notif *[]byte, noMerge bool, f func(opt ptr) Status) Status {
	o, s := cOpt(b.handle(), notif, noMerge)
	if o != nil {
		defer cDestroyOpt(o)
	}
	if s != Success {
		return s
	}
	return f(o)
}

// Register implements nixl_capi_register_mem; b nil means every backend.
func (a *Agent) Register(mem Mem, d []Desc, b *Backend) error { return a.RegisterMeta(mem, d, "", b) }

// RegisterMeta is Register with metaInfo for each range.
func (a *Agent) RegisterMeta(mem Mem, d []Desc, meta string, b *Backend) error {
	return withRegList(mem, d, meta, func(l ptr) Status {
		return withOpt(b, nil, false, func(o ptr) Status { return cRegister(a.h, l, o) })
	}).Err("register_mem")
}

// Deregister implements nixl_capi_deregister_mem.
func (a *Agent) Deregister(mem Mem, d []Desc, b *Backend) error {
	return withRegList(mem, d, "", func(l ptr) Status {
		return withOpt(b, nil, false, func(o ptr) Status { return cDeregister(a.h, l, o) })
	}).Err("deregister_mem")
}
