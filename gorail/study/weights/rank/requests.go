package rank

import (
	"errors"
	"fmt"
	"time"

	"gorail/nixlapi"
)

// Prepare makes a request for each tensor and peer. A WRITE's notification has the tensor's number.
func (s *Server) Prepare(in Args, out *Out) (err error) {
	defer s.mems[0].Hold()()
	if err := errors.Join(s.drop(), s.load(in.Peers)); err != nil {
		return err
	}
	pairs := make([][]pair, len(in.Peers)) // by peer and tensor
	for k, p := range in.Peers {
		for i := range s.tensors {
			pairs[k] = append(pairs[k], s.descs(i, p))
		}
	}
	s.xfers = make([][]flight, len(s.tensors))
	for k, p := range in.Peers {
		made, took, err := s.requests(in.Op, p, pairs[k], in.Prepared)
		if err != nil {
			return err
		}
		out.Make, out.Requests = out.Make+took, out.Requests+len(made)
		for i, x := range made {
			s.xfers[i] = append(s.xfers[i], flight{x, pairs[k][i].size})
			out.Ranges += len(pairs[k][i].here)
		}
	}
	return nil
}

// load loads the metadata of peers that are not loaded.
func (s *Server) load(peers []Peer) error {
	for _, p := range peers {
		if s.peers[p.Name] {
			continue
		}
		if _, err := s.agent.Load(p.MD); err != nil {
			return err
		}
		s.peers[p.Name] = true
	}
	return nil
}

// pair is the ranges of a request.
type pair struct {
	here, there []nixlapi.Desc
	size        uint64
}

// requests makes a request for each pair: of create_xfer_req, or of make_xfer_req over two prepared lists that have the ranges of all pairs. took has
// the lists, too.
func (s *Server) requests(op nixlapi.Op, p Peer, pairs []pair, prepared bool) (made []*nixlapi.Xfer, took time.Duration, err error) {
	var here, there *nixlapi.Dlist
	var all pair
	for _, r := range pairs {
		all.here, all.there = append(all.here, r.here...), append(all.there, r.there...)
	}
	ids := make([]int32, len(all.here))
	for i := range ids {
		ids[i] = int32(i)
	}
	kind, began := s.mems[0].Kind, time.Now()
	if prepared {
		if here, err = s.agent.PrepDlist(nixlapi.LocalSide, kind, all.here, s.back); err != nil {
			return nil, 0, err
		}
		s.lists = append(s.lists, here)
		if there, err = s.agent.PrepDlist(p.Name, kind, all.there, s.back); err != nil {
			return nil, 0, err
		}
		s.lists = append(s.lists, there)
	}
	for i, r := range pairs {
		o := nixlapi.XferOpts{Backend: s.back}
		if msg := []byte{byte(i), byte(i >> 8)}; op == nixlapi.Write {
			o.Notif = &msg
		}
		var x *nixlapi.Xfer
		if prepared {
			x, err = s.agent.MakeXfer(op, here, ids[:len(r.here)], there, ids[:len(r.here)], o)
			ids = ids[len(r.here):]
		} else {
			x, err = s.agent.CreateXfer(op, kind, r.here, r.there, p.Name, o)
		}
		if err != nil {
			return made, 0, fmt.Errorf("%v %d of %d, %s: %w", op, i, len(pairs), p.Name, err)
		}
		made = append(made, x)
	}
	return made, time.Since(began), nil
}

// descs are the ranges of a tensor here and at a peer. One of the two may have a half.
func (s *Server) descs(i int, p Peer) (out pair) {
	half := max(s.in.Half, p.Half)
	for _, r := range s.tensors[i].spans(half) {
		mine, theirs := r.trainer, r.worker
		if s.in.Half == half {
			mine, theirs = theirs, mine
		}
		out.here = append(out.here, nixlapi.Desc{Addr: s.self.Bases[i] + mine, Len: r.size, Dev: uint64(s.in.GPU)})
		out.there = append(out.there, nixlapi.Desc{Addr: p.Bases[i] + theirs, Len: r.size, Dev: uint64(p.GPU)})
		out.size += r.size
	}
	return out
}

// drop releases what Prepare has made.
func (s *Server) drop() (err error) {
	for _, list := range s.xfers {
		for _, x := range list {
			err = errors.Join(err, x.Release())
		}
	}
	for _, l := range s.lists {
		err = errors.Join(err, l.Release())
	}
	s.xfers, s.lists = nil, nil
	return err
}
