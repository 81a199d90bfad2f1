// Package rank is one process of the study of weights: the trainer, or an inference worker. Each has an agent and a model's tensors, as tensors
// of their own, in one arena, or resharded to another tensor parallelism.
package rank

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"gorail/gorail/bench/memory"
	"gorail/gorail/measure"
	"gorail/gorail/side"
	"gorail/internal/pattern"
	"gorail/internal/subprocess"
	"gorail/nixlapi"
)

const (
	Command = "study-rank" // the argument that makes this program a rank
	Service = "Rank"       // the name of its commands
	Whole   = -1           // the half of a rank that has all of its tensors
)

// OpenArgs describe a rank.
type OpenArgs struct {
	Name, Backend, Wheel, PluginDir string
	Env                             subprocess.Map[string]
	Memory                          string // dram, vram
	Arena                           bool
	GPU, Half                       int // Half: Whole, or the half that this worker has of each tensor
	Model                           Model
	Scale                           uint64
}

// Registration is how long registrations took: of the first region of the process, of all regions with that one, and of all in one call again.
type Registration struct{ First, All, Again time.Duration }

// Peer is what other ranks need of a rank, and how it came to be.
type Peer struct {
	Name, Versions, Device      string
	MD                          []byte
	Bases                       []uint64 // of the tensors
	GPU, Half, Regions, Handles int
	Pid                         int
	Register                    Registration
}

// Args are those of Prepare, Move, Repost, Stream, Beside and Copy.
type Args struct {
	Op          nixlapi.Op
	Peers       []Peer
	Prepared    bool   // requests are made over prepared lists
	Post, Take  bool   // Post: all requests at once. Take: each when its tensor has come, until all have come
	Threads     int    // of Copy
	Second      Second // what another thread of Stream does
	Time, Limit time.Duration
}

// Out is what they did.
type Out struct {
	Requests, Ranges   int
	Bytes              uint64
	Began, Ended, Make time.Duration // the first two of CLOCK_MONOTONIC
	Calls              measure.Times // posts
}

// Server is the process. Its exported methods are the commands, one after the other.
type Server struct {
	in      OpenArgs
	tensors []tensor // of the trainer
	start   []uint64 // of them, in the bytes of a seed
	mems    []*memory.Memory
	bytes   [][]byte // of our tensors, on the host
	agent   *nixlapi.Agent
	back    *nixlapi.Backend
	self    Peer
	peers   map[string]bool // that are loaded
	xfers   [][]flight      // by tensor
	lists   []*nixlapi.Dlist
	more    *memory.Memory // of further regions
	ranges  []nixlapi.Desc // of it
}

// flight is a request.
type flight struct {
	*nixlapi.Xfer
	size uint64
}

// Main serves the study until it closes the connection.
func Main() error {
	err := subprocess.Serve(Service, &Server{peers: map[string]bool{}})
	if errors.Is(err, subprocess.ErrAlone) {
		return errors.New("only gorail study weights may start this command")
	}
	return err
}

// Open makes the memory, the agent and its backend, and registers all regions twice.
func (s *Server) Open(in OpenArgs, out *Peer) error {
	s.in, s.tensors = in, in.Model.tensors(in.Scale)
	s.self = Peer{Name: in.Name, Pid: os.Getpid(), GPU: in.GPU, Half: in.Half, Versions: side.Versions(in.Wheel)}
	if err := errors.Join(side.Environ(in.PluginDir, in.Env), s.alloc()); err != nil {
		return err
	}
	lib, err := nixlapi.Open(in.Wheel)
	if err != nil {
		return err
	}
	defer s.mems[0].Hold()()
	if s.agent, err = lib.NewAgent(in.Name, nixlapi.Config{ProgThread: true, Sync: nixlapi.SyncRW}); err != nil {
		return err
	}
	if s.back, err = s.agent.CreateBackend(in.Backend, nil); err != nil {
		return fmt.Errorf("backend %s: %w", in.Backend, err)
	}
	var regions []nixlapi.Desc
	for _, m := range s.mems {
		regions = append(regions, m.Desc(0, uint64(len(m.Host()))))
		s.self.Handles += m.Handles()
	}
	s.self.Regions, s.self.Device = len(regions), s.mems[0].Name
	if s.self.Register, err = s.timed(regions); err != nil {
		return err
	}
	s.self.MD, err = s.agent.Metadata()
	*out = s.self
	return err
}

// timed registers regions, takes them back and registers them again.
func (s *Server) timed(all []nixlapi.Desc) (took Registration, err error) {
	kind, began := s.mems[0].Kind, time.Now()
	if err = s.agent.Register(kind, all[:1], s.back); err != nil {
		return took, err
	}
	took.First = time.Since(began)
	if len(all) > 1 {
		if err = s.agent.Register(kind, all[1:], s.back); err != nil {
			return took, err
		}
	}
	took.All = time.Since(began)
	if err = s.agent.Deregister(kind, all, s.back); err != nil {
		return took, err
	}
	began = time.Now()
	err = s.agent.Register(kind, all, s.back)
	took.Again = time.Since(began)
	return took, err
}

// alloc makes the memory of our tensors.
func (s *Server) alloc() (err error) {
	var m *memory.Memory
	if s.in.Arena {
		if m, err = memory.Arena(s.in.Memory, s.in.GPU, s.in.Model.Bytes(s.in.Scale)); err != nil {
			return err
		}
		s.mems = append(s.mems, m)
	}
	at := uint64(0)
	for _, t := range s.tensors {
		n, off := uint64(0), at
		for _, r := range t.spans(s.in.Half) {
			n += r.size
		}
		if !s.in.Arena {
			if m, err = memory.Alloc(s.in.Memory, s.in.GPU, n); err != nil {
				return err
			}
			s.mems, off = append(s.mems, m), 0
		}
		s.self.Bases, s.bytes, s.start = append(s.self.Bases, m.Addr()+off), append(s.bytes, m.Host()[off:off+n]), append(s.start, at)
		at += t.bytes()
	}
	return nil
}

// Move posts the requests once, and waits until all have ended and all tensors have come.
func (s *Server) Move(in Args, out *Out) error {
	defer s.mems[0].Hold()()
	var flying, ready []flight
	if in.Post {
		ready = slices.Concat(s.xfers...)
	}
	want := 0 // tensors
	if in.Take {
		want = len(s.tensors)
	}
	out.Began = measure.Now()
	for now := out.Began; len(ready)+len(flying)+want > 0; now = measure.Now() {
		for _, f := range ready {
			began := measure.Now()
			if st := f.Post(); st.Failed() {
				return st.Err("post_xfer_req")
			}
			out.Calls.Record(measure.Now() - began)
			out.Bytes += f.size
		}
		last := append(flying, ready...)
		flying, ready = last[:0], nil
		for _, f := range last {
			if st := f.Status(); st.Failed() {
				return st.Err("get_xfer_status")
			} else if st == nixlapi.InProgress {
				flying = append(flying, f)
			}
		}
		if now > out.Began+in.Limit {
			return fmt.Errorf("not done after %v: %d requests are in flight, %d tensors have not come", in.Limit, len(flying), want)
		}
		if want > 0 {
			list, err := s.agent.Notifs()
			if err != nil {
				return err
			}
			for _, m := range list {
				ready, want = append(ready, s.xfers[int(m.Msg[0])|int(m.Msg[1])<<8]...), want-1
			}
			if len(list)+len(flying) == 0 {
				time.Sleep(20 * time.Microsecond)
			}
		}
	}
	out.Ended = measure.Now()
	return nil
}

// each calls f with each tensor at once.
func (s *Server) each(f func(i int) error) error {
	var all sync.WaitGroup
	errs := make([]error, len(s.tensors))
	for i := range errs {
		all.Go(func() { errs[i] = f(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Fill writes the bytes of a seed to the trainer's memory.
func (s *Server) Fill(seed uint64, _ *struct{}) error {
	err := s.each(func(i int) error {
		pattern.Fill(s.bytes[i], seed, s.start[i])
		return nil
	})
	for _, m := range s.mems {
		err = errors.Join(err, m.Push(uint64(len(m.Host()))))
	}
	return err
}

// Check compares all bytes of a worker with those that the trainer has of a seed.
func (s *Server) Check(seed uint64, _ *struct{}) (err error) {
	for _, m := range s.mems {
		err = errors.Join(err, m.Pull(uint64(len(m.Host()))))
	}
	return errors.Join(err, s.each(func(i int) error {
		for _, r := range s.tensors[i].spans(s.in.Half) {
			if d := pattern.Diff(s.bytes[i][r.worker:r.worker+r.size], seed, s.start[i]+r.trainer); d >= 0 {
				return fmt.Errorf("wrong bytes: tensor %d, byte %d", i, r.worker+uint64(d))
			}
		}
		return nil
	}))
}

// Close releases the agent. The process ends with its connection.
func (s *Server) Close(struct{}, *struct{}) error { return errors.Join(s.drop(), s.agent.Close()) }
