package side

import (
	"errors"
	"os"
	"time"

	"gorail/gorail/limits"
	"gorail/gorail/measure"
	"gorail/nixlapi"
)

// point is what Prepare has created.
type point struct {
	measure.Point
	work  []nixlapi.Work // by thread
	lists []*nixlapi.Dlist
	jobs  []limits.Job // of a limit, by thread
	socks []*os.File
}

// Prepare creates the requests of a point, in place of the previous point's.
func (s *Server) Prepare(in PointArgs, out *PointOut) error {
	if err := s.drop(); err != nil {
		return err
	}
	if s.remote && s.in.Limit != measure.TCP {
		return errInitiator
	}
	s.point.Point = in.Point
	if s.in.Limit != "" {
		return s.prepareLimit(in, out)
	}
	began, p := time.Now(), in.Point
	var lists []pair
	if p.IDs != "" {
		var err error
		if lists, err = s.prepareLists(); err != nil {
			return err
		}
		out.Make = time.Since(began) / time.Duration(len(lists))
	}
	s.point.work = make([]nixlapi.Work, p.Threads)
	for t := range p.Threads {
		agent := t % p.Engines()
		opts := nixlapi.XferOpts{Backend: s.agents[agent].back}
		if in.Notify {
			msg := []byte("done")
			opts.Notif = &msg
		}
		if p.IDs != "" {
			s.addBlocks(t, lists[agent], opts)
		} else if err := s.addXfers(t, agent, opts); err != nil {
			return err
		}
	}
	if p.IDs == "" {
		out.Make = time.Since(began) / time.Duration(p.Slots())
	}
	return nil
}

func (s *Server) op() nixlapi.Op {
	if s.point.Op == "READ" {
		return nixlapi.Read
	}
	return nixlapi.Write
}

// descs are the descriptors of a slot, here and at the peer.
func (s *Server) descs(slot int) (local, remote []nixlapi.Desc) {
	w := s.point.Place()
	for k := range w.N {
		at := w.At(slot, k)
		local = append(local, s.buf.Desc(at, w.Len))
		remote = append(remote, nixlapi.Desc{Addr: s.peer.Base + at, Len: w.Len, Dev: s.peer.Dev})
	}
	return local, remote
}

// addXfers adds a thread's requests.
func (s *Server) addXfers(t, agent int, opts nixlapi.XferOpts) error {
	p := s.point.Point
	for i := range p.Depth {
		local, remote := s.descs(t*p.Depth + i)
		x, err := s.agents[agent].CreateXferBetween(s.op(), s.buf.Kind, local, s.peer.Kind, remote, s.peer.Names[agent], opts)
		if err != nil {
			return err
		}
		s.point.work[t].Xfers = append(s.point.work[t].Xfers, x)
	}
	return nil
}

// pair has the prepared lists of an agent and the peer, with the blocks of all slots.
type pair struct{ local, remote *nixlapi.Dlist }

// prepareLists prepares the lists of each agent.
func (s *Server) prepareLists() (out []pair, err error) {
	var local, remote []nixlapi.Desc
	for slot := range s.point.Slots() {
		here, there := s.descs(slot)
		local, remote = append(local, here...), append(remote, there...)
	}
	for _, a := range s.agents[:s.point.Engines()] {
		var p pair
		if p.local, err = a.PrepDlist(nixlapi.LocalSide, s.buf.Kind, local, a.back); err != nil {
			return nil, err
		}
		s.point.lists = append(s.point.lists, p.local)
		if p.remote, err = a.PrepDlist(s.peer.Names[len(out)], s.peer.Kind, remote, a.back); err != nil {
			return nil, err
		}
		s.point.lists = append(s.point.lists, p.remote)
		out = append(out, p)
	}
	return out, nil
}

// addBlocks adds a thread's blocks.
func (s *Server) addBlocks(t int, lists pair, opts nixlapi.XferOpts) {
	p := s.point.Point
	for i := range p.Depth {
		b := nixlapi.Blocks{Op: s.op(), Local: lists.local, Remote: lists.remote, N: p.Batch, Opts: opts, LocalIDs: s.ids(p, InitiatorOrder), RemoteIDs: s.ids(p, TargetOrder)}
		first := int32((t*p.Depth + i) * len(b.LocalIDs))
		for k := range b.LocalIDs {
			b.LocalIDs[k] += first
			b.RemoteIDs[k] += first
		}
		s.point.work[t].Blocks = append(s.point.work[t].Blocks, b)
	}
}

// drop releases a point's requests and sockets.
func (s *Server) drop() (err error) {
	for _, w := range s.point.work {
		for _, x := range w.Xfers {
			if x.Release() != nil {
				err = errors.Join(err, x.Release()) // the agent may refuse the first release
			}
		}
	}
	for _, l := range s.point.lists {
		err = errors.Join(err, l.Release())
	}
	for _, f := range s.point.socks {
		_ = f.Close()
	}
	if s.listen != nil {
		_ = s.listen.Close()
	}
	s.point, s.listen = point{}, nil
	return err
}
