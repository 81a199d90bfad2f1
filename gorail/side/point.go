package side

import (
	"errors"
	"os"
	"time"

	"gorail/gorail/bench/layout"
	"gorail/gorail/limits"
	"gorail/gorail/measure"
	"gorail/nixlapi"
)

// point is what Prepare has created.
type point struct {
	measure.Point
	routes []Route
	work   []nixlapi.Work // by thread
	lists  []*nixlapi.Dlist
	jobs   []limits.Job // of a limit, by thread
	socks  []*os.File
}

// Prepare creates the requests of a point, in place of the previous point's.
func (s *Server) Prepare(in PointArgs, out *PointOut) error {
	if err := s.drop(); err != nil {
		return err
	}
	if s.remote && s.in.Limit != measure.TCP {
		return errInitiator
	}
	s.point.Point, s.point.routes = in.Point, in.Routes
	if s.in.Limit != "" {
		return s.prepareLimit(in, out)
	}
	began, made := time.Now(), in.Point.Slots()*len(in.Routes)
	var add func(t, agent int, r Route, o nixlapi.XferOpts) error
	if in.Point.IDs == "" {
		add = s.addXfers
	} else {
		lists, err := s.prepareLists(in)
		if err != nil {
			return err
		}
		out.Make = time.Since(began) / time.Duration(max(1, len(s.point.lists)/2))
		add = func(t, agent int, r Route, o nixlapi.XferOpts) error {
			s.addBlocks(t, r, lists[agent][r.Peer], o)
			return nil
		}
	}
	s.point.work = make([]nixlapi.Work, in.Point.Threads)
	for t := range in.Point.Threads {
		agent := t % in.Point.Engines()
		opts := nixlapi.XferOpts{Backend: s.agents[agent].back}
		if in.Notify {
			msg := []byte("done")
			opts.Notif = &msg
		}
		for _, r := range in.Routes {
			if err := add(t, agent, r, opts); err != nil {
				return err
			}
		}
	}
	if in.Point.IDs == "" {
		out.Make = time.Since(began) / time.Duration(made)
	}
	return nil
}

func (s *Server) op() nixlapi.Op {
	if s.point.Op == "READ" {
		return nixlapi.Read
	}
	return nixlapi.Write
}

// addXfers adds a thread's requests to a peer.
func (s *Server) addXfers(t, agent int, r Route, opts nixlapi.XferOpts) error {
	p, to := s.point.Point, s.peers[r.Peer]
	for i := range p.Depth {
		slot := t*p.Depth + i
		var local, remote []nixlapi.Desc
		for k := range r.Local.N {
			local = append(local, s.buf.Desc(r.Local.At(slot, k), r.Local.Len))
			remote = append(remote, to.desc(r.Remote.At(slot, k), r.Remote.Len))
		}
		x, err := s.agents[agent].CreateXferBetween(s.op(), s.buf.Kind, local, to.Kind, remote, to.Names[agent], opts)
		if err != nil {
			return err
		}
		s.point.work[t].Xfers = append(s.point.work[t].Xfers, x)
	}
	return nil
}

// desc describes n bytes at offset off of the peer's buffer.
func (p *Peer) desc(off, n uint64) nixlapi.Desc {
	return nixlapi.Desc{Addr: p.Base + off, Len: n, Dev: p.Dev}
}

// pair has the prepared lists of an agent and a peer, with the blocks of all slots.
type pair struct{ local, remote *nixlapi.Dlist }

// prepareLists prepares the lists of each agent (the first index) with each peer.
func (s *Server) prepareLists(in PointArgs) (out []map[int]pair, err error) {
	for agent := range in.Point.Engines() {
		a, lists := s.agents[agent], map[int]pair{}
		for _, r := range in.Routes {
			var local, remote []nixlapi.Desc
			for slot := range in.Point.Slots() {
				for k := range r.Local.N {
					local = append(local, s.buf.Desc(r.Local.At(slot, k), r.Local.Len))
					remote = append(remote, s.peers[r.Peer].desc(r.Remote.At(slot, k), r.Remote.Len))
				}
			}
			var p pair
			if p.local, err = a.PrepDlist(nixlapi.LocalSide, s.buf.Kind, local, a.back); err != nil {
				return nil, err
			}
			s.point.lists = append(s.point.lists, p.local)
			if p.remote, err = a.PrepDlist(s.peers[r.Peer].Names[agent], s.peers[r.Peer].Kind, remote, a.back); err != nil {
				return nil, err
			}
			s.point.lists = append(s.point.lists, p.remote)
			lists[r.Peer] = p
		}
		out = append(out, lists)
	}
	return out, nil
}

// addBlocks adds a thread's blocks for a peer.
func (s *Server) addBlocks(t int, r Route, lists pair, opts nixlapi.XferOpts) {
	p := s.point.Point
	for i := range p.Depth {
		first := int32((t*p.Depth + i) * r.Local.N)
		b := nixlapi.Blocks{Op: s.op(), Local: lists.local, Remote: lists.remote, N: p.Batch, Opts: opts,
			LocalIDs: layout.IDs(p.IDs, r.Local.N, r.Seeds[0]), RemoteIDs: layout.IDs(p.IDs, r.Remote.N, r.Seeds[1])}
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
