package worker

import (
	"fmt"
	"time"

	"gorail/nixlapi"
)

func (in XferArgs) opts(b *nixlapi.Backend) nixlapi.XferOpts {
	o := nixlapi.XferOpts{Backend: b, NoMerge: in.NoMerge}
	if in.HasNotif {
		msg := in.Notif // gob turns an empty slice into nil
		o.Notif = &msg
	}
	return o
}

func (s *Server) addXfer(g *agent, x *nixlapi.Xfer, out *XferOut) {
	s.mu.Lock()
	out.ID = s.id()
	s.mu.Unlock()
	g.mu.Lock()
	g.xfers[out.ID] = &xfer{x: x}
	g.mu.Unlock()
}

// CreateXfer creates a request from two layouts.
func (s *Server) CreateXfer(in XferArgs, out *XferOut) error {
	l, r := in.Local.Descs(), in.Remote.Descs()
	return s.onAgent(in.Agent, func(g *agent) {
		began := time.Now()
		x, err := g.a.CreateXferBetween(in.Op, in.Local.Mem, l, in.Remote.Mem, r, in.Peer, in.opts(g.b))
		out.Took = time.Since(began)
		if out.Err = nixlError(err); err == nil {
			s.addXfer(g, x, out)
		}
	})
}

// PrepDlist prepares the Local layout for Peer, or for the own side if Peer is empty.
func (s *Server) PrepDlist(in XferArgs, out *XferOut) error {
	d := in.Local.Descs()
	return s.onAgent(in.Agent, func(g *agent) {
		began := time.Now()
		l, err := g.a.PrepDlist(in.Peer, in.Local.Mem, d, g.b)
		out.Took = time.Since(began)
		if out.Err = nixlError(err); err != nil {
			return
		}
		s.mu.Lock()
		out.ID = s.id()
		s.mu.Unlock()
		g.mu.Lock()
		g.lists[out.ID] = l
		g.mu.Unlock()
	})
}

// ReleaseDlist releases a prepared list.
func (s *Server) ReleaseDlist(in Ref, out *ErrOut) error {
	return s.onAgent(in.Agent, func(g *agent) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if l := g.lists[in.ID]; l != nil {
			out.Err = nixlError(l.Release())
			delete(g.lists, in.ID)
		}
	})
}

// MakeXfer creates a request from indices into two prepared lists.
func (s *Server) MakeXfer(in XferArgs, out *XferOut) error {
	g, err := s.agent(in.Agent)
	if err != nil {
		return err
	}
	g.mu.Lock()
	l, r := g.lists[in.LD], g.lists[in.RD]
	g.mu.Unlock()
	if l == nil || r == nil {
		return fmt.Errorf("no prepared list %d or %d", in.LD, in.RD)
	}
	g.do(func() {
		began := time.Now()
		x, err := g.a.MakeXfer(in.Op, l, in.LI, r, in.RI, in.opts(g.b))
		out.Took = time.Since(began)
		if out.Err = nixlError(err); err == nil {
			s.addXfer(g, x, out)
		}
	})
	return nil
}

// Post posts a request.
func (s *Server) Post(in PostArgs, out *XferOut) error {
	g, x, err := s.xfer(Ref{in.Agent, in.ID})
	if err != nil {
		return err
	}
	g.do(func() {
		began := time.Now()
		switch in.Mode {
		case AsMade:
			x.last = x.x.Post()
		case WithNotif:
			x.last = x.x.PostWith(&in.Msg)
		case NoNotif:
			x.last = x.x.PostWith(nil)
		}
		out.Took = time.Since(began)
		out.Status = x.last
	})
	return nil
}

// Status polls once.
func (s *Server) Status(in Ref, out *XferOut) error {
	g, x, err := s.xfer(in)
	if err != nil {
		return err
	}
	g.do(func() { x.last = x.x.Status(); out.Status = x.last })
	return nil
}

// Wait polls until the request is no longer in progress.
func (s *Server) Wait(in WaitArgs, out *XferOut) error {
	g, x, err := s.xfer(Ref{in.Agent, in.ID})
	if err != nil {
		return err
	}
	began := time.Now()
	g.until(in.Timeout, func() bool {
		if x.last == nixlapi.InProgress {
			x.last = x.x.Status()
		}
		return x.last != nixlapi.InProgress
	})
	out.Status, out.Took = x.last, time.Since(began)
	return nil
}

// Release releases a request. After an error the request stays for a second release.
func (s *Server) Release(in Ref, out *ErrOut) error {
	g, x, err := s.xfer(in)
	if err != nil {
		return err
	}
	g.do(func() {
		if out.Err = nixlError(x.x.Release()); out.Err == nil {
			g.mu.Lock()
			delete(g.xfers, in.ID)
			g.mu.Unlock()
		}
	})
	return nil
}

// Cost estimates a request and names its backend.
func (s *Server) Cost(in Ref, out *XferOut) error {
	g, x, err := s.xfer(in)
	if err != nil {
		return err
	}
	g.do(func() {
		us, _, err := x.x.Cost()
		out.Us, out.Err = us, nixlError(err)
		if err == nil {
			out.Backend, err = x.x.Backend()
			out.Err = nixlError(err)
		}
	})
	return nil
}
