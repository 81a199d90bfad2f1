package side

import (
	"errors"
	"fmt"
	"time"

	"gorail/cmd/gorail/limits"
	"gorail/cmd/gorail/measure"
	"gorail/internal/pattern"
	"gorail/internal/procstat"
	"gorail/nixlapi"
)

// Prepare creates the requests of a point, in place of the previous point's.
func (s *Server) Prepare(in PointArgs, out *PointOut) error {
	if err := s.drop(); err != nil {
		return err
	}
	if s.in.Limit != "" {
		return s.prepareLimit(in, out)
	}
	var opts nixlapi.XferOpts
	if in.Notify {
		msg := []byte("done")
		opts.Notif = &msg
	}
	opts.Backend = s.back
	op := nixlapi.Write
	if in.Point.Op == "READ" {
		op = nixlapi.Read
	}
	began := time.Now()
	for t := range in.Point.Threads {
		var list []*nixlapi.Xfer
		for i := range in.Point.Depth {
			offs := in.Point.Offsets(t, i)
			local, remote := make([]nixlapi.Desc, len(offs)), make([]nixlapi.Desc, len(offs))
			for j, off := range offs {
				local[j] = nixlapi.Desc{Addr: s.buf.Addr() + off, Len: in.Point.Block}
				remote[j] = nixlapi.Desc{Addr: s.peer.Base + off, Len: in.Point.Block}
			}
			x, err := s.agent.CreateXfer(op, nixlapi.DRAM, local, remote, s.name, opts)
			if err != nil {
				return err
			}
			list = append(list, x)
		}
		s.reqs = append(s.reqs, list)
	}
	out.Make = time.Since(began) / time.Duration(in.Point.Threads*in.Point.Depth)
	return nil
}

// drop releases a point's requests and sockets.
func (s *Server) drop() (err error) {
	for _, list := range s.reqs {
		for _, x := range list {
			if x.Release() != nil {
				err = errors.Join(err, x.Release()) // the agent may refuse the first release
			}
		}
	}
	for _, f := range s.socks {
		_ = f.Close()
	}
	if s.listen != nil {
		_ = s.listen.Close()
	}
	s.reqs, s.jobs, s.socks, s.listen = nil, nil, nil, nil
	return err
}

// Run posts the requests of the point, or runs the copies of the limit.
func (s *Server) Run(in measure.Pace, out *RunOut) error {
	cpu := procstat.CPUTime()
	defer func() { out.CPU = procstat.CPUTime() - cpu }()
	if s.in.Limit != "" {
		for _, o := range limits.Run(s.in.Limit, s.op, s.peer.Pid, s.jobs, in) {
			out.add(o.Posted, o.Done, o.Wall, o.Lat, measure.Times{}, o.Err)
		}
		return nil
	}
	threads := uint64(len(s.reqs))
	args := nixlapi.BenchArgs{Warmup: in.Warmup, Count: (in.Count + threads - 1) / threads, Time: in.Time, Limit: in.Limit}
	for _, o := range nixlapi.Bench(s.agent, s.reqs, args) {
		err := o.Status.Err("post_xfer_req or get_xfer_status")
		if o.Status == nixlapi.InProgress {
			err = fmt.Errorf("not done after %v", in.Limit)
		}
		out.add(o.Posted, o.Done, o.Wall, measure.Times(o.Lat), measure.Times(o.Post), err)
	}
	return nil
}

// add adds the results of one thread.
func (out *RunOut) add(posted, done uint64, wall time.Duration, lat, post measure.Times, err error) {
	out.Posted, out.Done, out.Wall = out.Posted+posted, out.Done+done, max(out.Wall, wall)
	out.Lat.Add(lat)
	out.Post.Add(post)
	if err != nil {
		out.Failed = err.Error()
	}
}

// Serve makes the target poll its notifications. A limit's target polls, too, as a load; tcp has its answering threads
// instead.
func (s *Server) Serve(in ServeArgs, _ *None) error {
	s.cpu = procstat.CPUTime()
	s.endPoll() // the polling of a failed point
	switch {
	case in.Limit <= 0:
	case s.agent != nil:
		s.serve = s.agent.Serve(in.Limit, in.Nap)
	case s.in.Limit != "tcp":
		s.poll = limits.Poll(in.Limit, in.Nap)
	}
	return nil
}

func (s *Server) endPoll() {
	if s.poll != nil {
		s.poll()
		s.poll = nil
	}
}

// Want ends the polling of Serve.
func (s *Server) Want(in WantArgs, out *WantOut) (err error) {
	if s.agent != nil && in.Sleep {
		s.serve = s.agent.Serve(in.Wait, 0)
	}
	if s.serve != nil {
		out.Seen, err = s.serve.Want(in.N, in.Wait)
		s.serve = nil
	}
	s.endPoll()
	out.CPU = procstat.CPUTime() - s.cpu
	return err
}

// Notify sends notifications without transfers, in batches of 100 until the time is over.
func (s *Server) Notify(in NotifyArgs, out *RunOut) error {
	cpu, began := procstat.CPUTime(), time.Now()
	defer func() { out.CPU = procstat.CPUTime() - cpu }()
	msg := make([]byte, in.Size)
	for out.Posted < in.Pace.Count || in.Pace.Count == 0 && time.Since(began) < in.Pace.Time {
		n, err := s.agent.Notify(s.name, msg, 100, s.back)
		if out.Posted += n; err != nil {
			out.Failed = err.Error()
			return nil
		}
	}
	out.Done, out.Wall = out.Posted, time.Since(began)
	return nil
}

// Fill writes the patterns of a point to memory.
func (s *Server) Fill(in MemArgs, _ *None) error {
	return s.each(in, func(b []byte, at, seed uint64) error {
		pattern.Fill(b, seed, at)
		return nil
	})
}

// Check compares memory with the patterns: the blocks with the sent bytes, the gaps with their earlier bytes.
func (s *Server) Check(in MemArgs, _ *None) error {
	return s.each(in, func(b []byte, at, seed uint64) error {
		if d := pattern.Diff(b, seed, at); d >= 0 {
			where := "the transfer did not write"
			if seed == in.Between {
				where = "written beside the transfer's descriptors:"
			}
			return fmt.Errorf("wrong bytes: %s offset %d of the buffer", where, at+uint64(d))
		}
		return nil
	})
}

// each calls f for every block and every gap of a point, until f fails.
func (s *Server) each(in MemArgs, f func(b []byte, at, seed uint64) error) error {
	mem := s.buf.B
	if in.CopyTarget {
		mem = s.copyTarget.B
	}
	for t := range in.Point.Threads {
		for i := range in.Point.Depth {
			for _, off := range in.Point.Offsets(t, i) {
				end := off + in.Point.Block
				if err := f(mem[off:end], off, in.Seed); err != nil {
					return err
				}
				if gap := off + in.Point.Stride(); gap > end && gap <= uint64(len(mem)) {
					if err := f(mem[end:gap], end, in.Between); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}
