package nixlapi

import "time"

// XferOpts are the optional arguments of a request or a post.
type XferOpts struct {
	Backend *Backend // nil: the agent chooses
	Notif   *[]byte  // nil: no notification; an empty message is a message
	NoMerge bool     // the agent does not merge adjacent descriptors
}

// Xfer is a nixlXferReqH, a transfer request. Release it before closing its agent.
type Xfer struct {
	a    *Agent
	h    ptr
	post ptr // optional arguments of the last post, kept for the next
	msg  *[]byte
}

// CreateXfer implements nixl_capi_create_xfer_req. Every Post repeats a notification given here.
func (a *Agent) CreateXfer(op Op, mem Mem, local, remote []Desc, peer string, o XferOpts) (*Xfer, error) {
	return a.CreateXferBetween(op, mem, local, mem, remote, peer, o)
}

// CreateXferBetween is CreateXfer with memory of different types on both sides.
func (a *Agent) CreateXferBetween(op Op, here Mem, local []Desc, there Mem, remote []Desc, peer string, o XferOpts) (*Xfer, error) {
	l, s := cXferList(here, local)
	if l != nil {
		defer cDestroyXferList(l)
	}
	if s != Success {
		return nil, s.Err("xfer_dlist_add_desc")
	}
	r, s := cXferList(there, remote)
	if r != nil {
		defer cDestroyXferList(r)
	}
	if s != Success {
		return nil, s.Err("xfer_dlist_add_desc")
	}
	var h ptr
	s = withOpt(o.Backend, o.Notif, o.NoMerge, func(opt ptr) (s Status) {
		h, s = cCreateXfer(a.h, op, l, r, peer, opt)
		return s
	})
	if s != Success {
		return nil, s.Err("create_xfer_req")
	}
	return &Xfer{a: a, h: h}, nil
}

// Post implements nixl_capi_post_xfer_req without optional arguments.
func (x *Xfer) Post() Status { return cPost(x.a.h, x.h, nil) }

// PostWith implements nixl_capi_post_xfer_req with its own notification. nil disables the notification.
func (x *Xfer) PostWith(notif *[]byte) Status {
	if x.post == nil || x.msg != notif {
		if x.post != nil {
			cDestroyOpt(x.post)
		}
		// NoMerge has no effect here. It only makes cOpt create the arguments.
		o, s := cOpt(nil, notif, true)
		x.post, x.msg = o, notif
		if s != Success {
			return s
		}
	}
	return cPost(x.a.h, x.h, x.post)
}

// Loop posts the request n times, each after the previous has completed, without returning to Go in between. lat and
// post may be nil. Otherwise they have room for n, for the nanoseconds of every transfer and every post.
func (x *Xfer) Loop(n int, timeout time.Duration, lat, post []int64) (done int, s Status) {
	return cLoop(x.a.h, x.h, n, timeout, lat, post)
}

// MaxDepth is the maximum number of requests for Stream.
const MaxDepth = maxDepth

// Stream keeps requests of one agent in flight and posts each again when it has ended, n times in all. While none ends
// it sleeps, for less than a second at a time. It does not return to Go in between.
func Stream(all []*Xfer, n int, timeout, nap time.Duration) (done int, s Status) {
	handles := make([]ptr, len(all))
	for i, x := range all {
		handles[i] = x.h
	}
	return cStream(all[0].a.h, handles, n, timeout, nap)
}

// Status implements nixl_capi_get_xfer_status.
func (x *Xfer) Status() Status { return cXferStatus(x.a.h, x.h) }

// Release implements nixl_capi_release_xfer_req and nixl_capi_destroy_xfer_req. The agent may refuse the first release
// of a request in flight; call Release again then.
func (x *Xfer) Release() error {
	if x.h == nil {
		return nil
	}
	if s := cReleaseXfer(x.a.h, x.h); s != Success {
		return s.Err("release_xfer_req")
	}
	if x.post != nil {
		cDestroyOpt(x.post)
	}
	s := cDestroyXfer(x.h)
	x.h, x.post = nil, nil
	return s.Err("destroy_xfer_req")
}

// Cost implements nixl_capi_estimate_xfer_cost.
func (x *Xfer) Cost() (us, marginUs int64, err error) {
	us, marginUs, s := cCost(x.a.h, x.h)
	return us, marginUs, s.Err("estimate_xfer_cost")
}

// Backend implements nixl_capi_query_xfer_backend: the name of the request's backend, among those that this agent
// created.
func (x *Xfer) Backend() (string, error) {
	h, s := cXferBackend(x.a.h, x.h)
	if s != Success {
		return "", s.Err("query_xfer_backend")
	}
	defer cDestroyBackend(h)
	for _, b := range x.a.backends {
		if cSameBackend(b.h, h) {
			return b.name, nil
		}
	}
	return "", ErrNotFound.Err("query_xfer_backend")
}
