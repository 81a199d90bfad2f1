package side

import (
	"fmt"
	"time"

	"gorail/gorail/limits"
	"gorail/gorail/measure"
	"gorail/internal/procstat"
	"gorail/nixlapi"
)

// Run posts the requests of the point, or runs the copies of the limit.
func (s *Server) Run(pace measure.Pace, out *RunOut) error {
	if s.remote {
		return errInitiator
	}
	cpu := procstat.CPUTime()
	defer func() { out.CPU = procstat.CPUTime() - cpu }()
	if s.in.Limit != "" {
		for _, o := range limits.Run(s.in.Limit, s.point.Op, s.pid(), s.point.jobs, pace) {
			out.add(nixlapi.BenchOut{Posted: o.Posted, Done: o.Done, Began: o.Began, Wall: o.Wall, Lat: nixlapi.Times(o.Lat)}, o.Err)
		}
		return nil
	}
	threads := uint64(len(s.point.work))
	args := nixlapi.BenchArgs{Warmup: pace.Warmup, Count: (pace.Count + threads - 1) / threads, Time: pace.Time, Limit: pace.Limit}
	for _, o := range nixlapi.Bench(s.point.work, args) {
		err := o.Status.Err("make_xfer_req, post_xfer_req or get_xfer_status")
		if o.Status == nixlapi.InProgress {
			err = fmt.Errorf("not done after %v", pace.Limit)
		}
		out.add(o, err)
	}
	return nil
}

// pid is the process that the limit process_vm reads and writes.
func (s *Server) pid() int {
	if s.peer == nil {
		return 0
	}
	return s.peer.Pid
}

// add adds the results of one thread.
func (out *RunOut) add(o nixlapi.BenchOut, err error) {
	out.Posted, out.Done = out.Posted+o.Posted, out.Done+o.Done
	if out.Ended = max(out.Ended, o.Began+o.Wall); out.Began == 0 || o.Began < out.Began {
		out.Began = o.Began
	}
	out.Lat.Add(measure.Times(o.Lat))
	out.Post.Add(measure.Times(o.Post))
	out.Makes.Add(measure.Times(o.Make))
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
	case len(s.agents) > 0:
		s.serve = nixlapi.Serve(s.all(), in.Limit, in.Nap)
	case s.in.Limit != "tcp":
		s.poll = limits.Poll(in.Limit, in.Nap)
	}
	return nil
}

func (s *Server) all() (out []*nixlapi.Agent) {
	for _, a := range s.agents {
		out = append(out, a.Agent)
	}
	return out
}

func (s *Server) endPoll() {
	if s.poll != nil {
		s.poll()
		s.poll = nil
	}
}

// Want ends the polling of Serve.
func (s *Server) Want(in WantArgs, out *WantOut) (err error) {
	if len(s.agents) > 0 && in.Sleep {
		s.serve = nixlapi.Serve(s.all(), in.Wait, 0)
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
	if s.remote {
		return errInitiator
	}
	cpu, began := procstat.CPUTime(), time.Now()
	defer func() { out.CPU = procstat.CPUTime() - cpu }()
	msg := make([]byte, in.Size)
	for out.Posted < in.Pace.Count || in.Pace.Count == 0 && time.Since(began) < in.Pace.Time {
		n, err := s.agents[0].Notify(s.peer.Names[0], msg, 100, s.agents[0].back)
		if out.Posted += n; err != nil {
			out.Failed = err.Error()
			return nil
		}
	}
	out.Done = out.Posted
	return nil
}
