// Package crowd is one process of the study of many peers: some agents, each with a buffer.
package crowd

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"gorail/gorail/measure"
	"gorail/gorail/side"
	"gorail/internal/procstat"
	"gorail/internal/subprocess"
	"gorail/nixlapi"
)

// Command is the argument that makes this program such a process, and Service the name of its commands.
const (
	Command = "study-crowd"
	Service = "Crowd"
)

// Small and Large are the bytes of a transfer that meets a peer, and of one that measures fairness.
const (
	Small = 4 << 10
	Large = 256 << 10
)

// OpenArgs describe a process.
type OpenArgs struct {
	Backend          string
	Env              subprocess.Map[string]
	Params           subprocess.Map[string]
	Wheel, PluginDir string
	Names            []string // of its agents
	Slots            int      // of each agent's buffer: Large bytes each
}

// Peer is what others need of an agent.
type Peer struct {
	Name string
	MD   []byte
	Base uint64
}

// OpenOut are the agents.
type OpenOut struct {
	Peers    []Peer
	Versions string
}

// MeetArgs let an agent meet peers that it does not know.
type MeetArgs struct {
	Agent int
	Peers []Peer
	Limit time.Duration
}

// MeetOut is how long that took.
type MeetOut struct {
	Add   time.Duration   // to load the metadata of all
	All   time.Duration   // from then until a first transfer to each has ended
	First []time.Duration // each of these transfers, posted one after the other without a wait, sorted
}

// StreamArgs let agents write to the first peer that they have met, each to a slot of its own.
type StreamArgs struct {
	Start, End time.Duration // of CLOCK_MONOTONIC
	Slot       int           // of the first agent
	Agents     int           // the first ones of the process, at most
	Plain      int           // the process whose memory is read by process_vm_readv instead, without NIXL; 0: none
}

// StreamOut is what the agents moved, and the processor time that their process took for it.
type StreamOut struct {
	Moved []uint64
	CPU   time.Duration
}

// LatencyArgs let an agent write Small bytes to a peer that it knows, again and again.
type LatencyArgs struct {
	Agent int
	Peer  Peer
	Time  time.Duration
}

// LatencyOut are percentiles of the time from a post until the transfer has ended.
type LatencyOut struct {
	Count    int
	P50, P99 time.Duration
}

// None is an empty argument or reply.
type None struct{}

// Main serves the study until it closes the connection.
func Main() error {
	err := subprocess.Serve(Service, &Server{})
	if errors.Is(err, subprocess.ErrAlone) {
		return errors.New("only gorail study peers may start this command")
	}
	return err
}

// Server is the process. Its exported methods are the commands, one after the other.
type Server struct{ agents []*agent }

type agent struct {
	*nixlapi.Agent
	back *nixlapi.Backend
	buf  *nixlapi.Buffer
	hub  Peer // the first peer that it has met
}

// Open makes the agents.
func (s *Server) Open(in OpenArgs, out *OpenOut) error {
	if err := side.Environ(in.PluginDir, in.Env); err != nil {
		return err
	}
	lib, err := nixlapi.Open(in.Wheel)
	if err != nil {
		return err
	}
	for _, name := range in.Names {
		a := &agent{}
		size := uint64(in.Slots) * Large
		if a.buf, err = nixlapi.Alloc(int(size)); err != nil {
			return err
		}
		if a.Agent, err = lib.NewAgent(name, nixlapi.Config{ProgThread: true}); err != nil {
			return err
		}
		if a.back, err = a.CreateBackend(in.Backend, in.Params); err != nil {
			return fmt.Errorf("backend %s of %s: %w", in.Backend, name, err)
		}
		if err = a.Register(nixlapi.DRAM, []nixlapi.Desc{a.buf.Desc(0, size)}, a.back); err != nil {
			return err
		}
		p := Peer{Name: name, Base: a.buf.Addr()}
		if p.MD, err = a.Metadata(); err != nil {
			return err
		}
		s.agents, out.Peers = append(s.agents, a), append(out.Peers, p)
	}
	out.Versions = side.Versions(in.Wheel)
	return nil
}

// at is an agent by its number.
func (s *Server) at(n int) (*agent, error) {
	if n < 0 || n >= len(s.agents) {
		return nil, fmt.Errorf("no agent %d of %d", n, len(s.agents))
	}
	return s.agents[n], nil
}

// Meet loads metadata, and moves a few bytes to each peer.
func (s *Server) Meet(in MeetArgs, out *MeetOut) error {
	a, err := s.at(in.Agent)
	if err != nil || len(in.Peers) == 0 {
		return err
	}
	a.hub = in.Peers[0]
	began := measure.Now()
	for _, p := range in.Peers {
		if a.Knows(p.Name) { // of a life before
			_ = a.Invalidate(p.Name)
		}
		if _, err := a.Load(p.MD); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	loaded := measure.Now()
	out.Add = loaded - began
	end := began + in.Limit
	type flight struct {
		x      *nixlapi.Xfer
		posted time.Duration
		peer   string
	}
	var flying []flight
	var first error
	failed := 0
	look := func() {
		flying = slices.DeleteFunc(flying, func(f flight) bool {
			st := f.x.Status()
			if st == nixlapi.InProgress {
				return false
			}
			if st.Failed() {
				first = cmp.Or(first, fmt.Errorf("%s: %w", f.peer, st.Err("get_xfer_status")))
				failed++
			} else {
				out.First = append(out.First, measure.Now()-f.posted)
			}
			_ = f.x.Release()
			return true
		})
	}
	for _, p := range in.Peers {
		at := measure.Now()
		x, err := a.CreateXfer(nixlapi.Write, nixlapi.DRAM, []nixlapi.Desc{a.buf.Desc(0, Small)}, []nixlapi.Desc{{Addr: p.Base, Len: Small}}, p.Name, nixlapi.XferOpts{Backend: a.back})
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		if st := x.Post(); st.Failed() {
			return fmt.Errorf("%s: %w", p.Name, st.Err("post_xfer_req"))
		}
		flying = append(flying, flight{x, at, p.Name})
	}
	for look(); len(flying) > 0; look() {
		if measure.Now() > end {
			return fmt.Errorf("first transfers to %d of %d peers have not ended after %v", len(flying), len(in.Peers), in.Limit)
		}
		time.Sleep(100 * time.Microsecond)
	}
	out.All = measure.Now() - loaded
	slices.Sort(out.First)
	if failed > 0 {
		return fmt.Errorf("%d of %d first transfers failed after %v: %w", failed, len(in.Peers), out.All.Round(time.Millisecond), first)
	}
	return nil
}

// Stream writes with agents at once.
func (s *Server) Stream(in StreamArgs, out *StreamOut) error {
	agents := s.agents[:min(in.Agents, len(s.agents))]
	out.Moved = make([]uint64, len(agents))
	errs := make([]error, len(agents))
	time.Sleep(max(0, in.Start-measure.Now()))
	before := procstat.CPUTime()
	var wg sync.WaitGroup
	for n, a := range agents {
		wg.Go(func() {
			if in.Plain > 0 {
				out.Moved[n], errs[n] = a.plain(in, in.Slot+n)
			} else {
				out.Moved[n], errs[n] = a.stream(in, in.Slot+n)
			}
		})
	}
	wg.Wait()
	out.CPU = procstat.CPUTime() - before
	return errors.Join(errs...)
}

// pause is between two looks at a transfer.
const pause = 50 * time.Microsecond

// plain makes the copies that transfers over shared memory are made of, with their pauses.
func (a *agent) plain(in StreamArgs, slot int) (moved uint64, err error) {
	there := []nixlapi.Desc{{Addr: a.hub.Base + uint64(slot)*Large, Len: Large}}
	here := []nixlapi.Desc{a.buf.Desc(0, Large)}
	for measure.Now() < in.End {
		if _, err := nixlapi.ReadProcess(in.Plain, here, there, 1); err != nil {
			return moved, err
		}
		moved += Large
		time.Sleep(pause)
	}
	return moved, nil
}

func (a *agent) stream(in StreamArgs, slot int) (moved uint64, err error) {
	there := nixlapi.Desc{Addr: a.hub.Base + uint64(slot)*Large, Len: Large}
	x, err := a.CreateXfer(nixlapi.Write, nixlapi.DRAM, []nixlapi.Desc{a.buf.Desc(0, Large)}, []nixlapi.Desc{there}, a.hub.Name, nixlapi.XferOpts{Backend: a.back})
	if err != nil {
		return 0, err
	}
	defer func() { _ = x.Release() }()
	for measure.Now() < in.End {
		st := x.Post()
		for st == nixlapi.InProgress {
			time.Sleep(pause)
			if st = x.Status(); measure.Now() > in.End+time.Minute {
				return moved, errors.New("a transfer has no end within a minute")
			}
		}
		if st.Failed() {
			return moved, st.Err("get_xfer_status")
		}
		moved += Large
	}
	return moved, nil
}

// Latency measures one pair.
func (s *Server) Latency(in LatencyArgs, out *LatencyOut) error {
	a, err := s.at(in.Agent)
	if err != nil {
		return err
	}
	x, err := a.CreateXfer(nixlapi.Write, nixlapi.DRAM, []nixlapi.Desc{a.buf.Desc(0, Small)}, []nixlapi.Desc{{Addr: in.Peer.Base, Len: Small}}, in.Peer.Name, nixlapi.XferOpts{Backend: a.back})
	if err != nil {
		return err
	}
	defer func() { _ = x.Release() }()
	const some = 64
	var all []int64
	for end := measure.Now() + in.Time; measure.Now() < end || len(all) < some; {
		lat := make([]int64, some)
		n, st := x.Loop(some, time.Minute, lat, nil)
		if n < some {
			return fmt.Errorf("%s: %d of %d transfers: %w", in.Peer.Name, n, some, cmp.Or(st.Err("get_xfer_status"), errors.New("no end within a minute")))
		}
		all = append(all, lat...)
	}
	slices.Sort(all)
	out.Count, out.P50, out.P99 = len(all), time.Duration(all[len(all)/2]), time.Duration(all[len(all)*99/100])
	return nil
}

// Settle gives memory back to the system.
func (s *Server) Settle(None, *None) error {
	debug.FreeOSMemory()
	return nil
}

// Pid is the process's number.
func (s *Server) Pid(_ None, out *int) error {
	*out = os.Getpid()
	return nil
}
