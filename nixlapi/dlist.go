package nixlapi

// Dlist is a nixlDlistH, a prepared descriptor list. Release it after the requests made from it.
type Dlist struct {
	a *Agent
	h ptr
}

// LocalSide is the peer name of the initiator's own side, for PrepDlist.
const LocalSide = ""

// PrepDlist implements nixl_capi_prep_xfer_dlist.
func (a *Agent) PrepDlist(peer string, mem Mem, d []Desc, b *Backend) (*Dlist, error) {
	l, s := cXferList(mem, d)
	if l != nil {
		defer cDestroyXferList(l)
	}
	if s != Success {
		return nil, s.Err("xfer_dlist_add_desc")
	}
	var h ptr
	s = withOpt(b, nil, false, func(o ptr) (s Status) {
		h, s = cPrepDlist(a.h, peer, l, o)
		return s
	})
	if s != Success {
		return nil, s.Err("prep_xfer_dlist")
	}
	return &Dlist{a: a, h: h}, nil
}

// Release implements nixl_capi_release_xfer_dlist_handle.
func (d *Dlist) Release() error {
	s := cReleaseDlist(d.a.h, d.h)
	d.h = nil
	return s.Err("release_xfer_dlist_handle")
}

// MakeXfer implements nixl_capi_make_xfer_req over two prepared lists.
func (a *Agent) MakeXfer(op Op, local *Dlist, li []int32, remote *Dlist, ri []int32, o XferOpts) (*Xfer, error) {
	var h ptr
	s := withOpt(o.Backend, o.Notif, o.NoMerge, func(opt ptr) (s Status) {
		h, s = cMakeXfer(a.h, op, local.h, li, remote.h, ri, opt)
		return s
	})
	if s != Success {
		return nil, s.Err("make_xfer_req")
	}
	return &Xfer{a: a, h: h}, nil
}
