// Package life is one process of the study of a week: agents that come and go, and transfers whose bytes are compared.
package life

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"gorail/gorail/measure"
	"gorail/gorail/side"
	"gorail/internal/subprocess"
	"gorail/nixlapi"
)

// Command is the argument that makes this program such a process, and Service the name of its commands.
const (
	Command = "study-life"
	Service = "Life"
)

// A place at an agent has lanes: as many transfers to it are in flight at once. An agent has as many places as peers write to it at a time.
const (
	Lanes = 8
	lane  = 256 << 10
	place = Lanes * lane
)

// Most transfers are small; one batch of Lanes in large ones has that size.
const (
	small = 4 << 10
	large = 64
)

// A batch of that many begins with new requests, and every request of such a batch is released again: applications do both.
const fresh = 8

// patience is for one transfer, and for notifications that were sent.
const patience = time.Minute

// OpenArgs describe a process.
type OpenArgs struct {
	Backend          string
	Env, Params      subprocess.Map[string]
	Wheel, PluginDir string
	Names            []string // of its agents
}

// OpenOut are the agents.
type OpenOut struct {
	Peers    []Peer
	Versions string
}

// Peer is what others need of an agent.
type Peer struct {
	Name string
	MD   []byte
	Base uint64
}

// Names are agents, and how many notifications have been sent to each.
type Names struct {
	Names  []string
	Notifs uint64
}

// MoveArgs move bytes to a peer and back: Turns batches of Lanes WRITEs, each followed by READs of what was written.
type MoveArgs struct {
	Agent string
	Peer  Peer
	Place int // at the peer
	Turns int

	Silent bool // without notifications
}

// MeetArgs let agents add peers, move bytes to each and back, and remove them again, Times times in all. Agents and peers take turns.
type MeetArgs struct {
	Agents []string
	Peers  []Peer
	Place  int
	Times  int
	Silent bool // without notifications
}

// MoveOut counts transfers that ended with the right bytes.
type MoveOut struct {
	Transfers, Bytes uint64
	Notifs           uint64 // that were sent
}

// None is an empty argument or reply.
type None struct{}

// Main serves the study until it closes the connection.
func Main() error {
	err := subprocess.Serve(Service, &Server{agents: map[string]*agent{}})
	if errors.Is(err, subprocess.ErrAlone) {
		return errors.New("only gorail study week may start this command")
	}
	return err
}

// Server is the process. Its exported methods are the commands, one at a time.
type Server struct {
	in     OpenArgs
	lib    *nixlapi.Lib
	agents map[string]*agent
	notifs uint64 // that have come to agents which are gone
}

type agent struct {
	*nixlapi.Agent
	back   *nixlapi.Backend
	buf    *nixlapi.Buffer // places for peers; then what is sent, and what comes back
	routes map[string]*route
	turns  uint64
	notifs uint64 // that have come
}

// route has the requests to a peer that are posted again and again.
type route struct {
	at        Peer
	small     []pair
	withNotif []pair
}

// pair is a WRITE to a lane at the peer, and a READ of the same.
type pair struct{ write, read *nixlapi.Xfer }

// places is how many places an agent has.
const places = 4

// Open makes the first agents.
func (s *Server) Open(in OpenArgs, out *OpenOut) (err error) {
	if err = side.Environ(in.PluginDir, in.Env); err != nil {
		return err
	}
	if s.lib, err = nixlapi.Open(in.Wheel); err != nil {
		return err
	}
	s.in = in
	out.Versions = side.Versions(in.Wheel)
	err = s.Arrive(Names{Names: in.Names}, &out.Peers)
	for _, a := range s.agents {
		clear(a.buf.B) // all pages are there from the beginning
	}
	return err
}

// Arrive makes agents.
func (s *Server) Arrive(in Names, out *[]Peer) error {
	for _, name := range in.Names {
		a, err := s.arrive(name)
		if err != nil {
			return fmt.Errorf("agent %s: %w", name, err)
		}
		s.agents[name] = a
		p := Peer{Name: name, Base: a.buf.Addr()}
		if p.MD, err = a.Metadata(); err != nil {
			return err
		}
		*out = append(*out, p)
	}
	return nil
}

func (s *Server) arrive(name string) (a *agent, err error) {
	a = &agent{routes: map[string]*route{}}
	if a.buf, err = nixlapi.Alloc(places*place + 2*place); err != nil {
		return nil, err
	}
	_ = unix.Madvise(a.buf.B, unix.MADV_NOHUGEPAGE) // a huge page that the kernel makes later would look like growth
	if a.Agent, err = s.lib.NewAgent(name, nixlapi.Config{ProgThread: true}); err != nil {
		return nil, errors.Join(err, a.buf.Free())
	}
	if a.back, err = a.CreateBackend(s.in.Backend, s.in.Params); err == nil {
		err = a.Register(nixlapi.DRAM, a.all(), a.back)
	}
	if err != nil {
		return nil, errors.Join(err, a.Agent.Close(), a.buf.Free())
	}
	return a, nil
}

// all is the agent's memory, in the ranges that it registers.
func (a *agent) all() []nixlapi.Desc {
	return []nixlapi.Desc{a.buf.Desc(0, places*place), a.buf.Desc(places*place, 2*place)}
}

// Leave ends agents. Every other one deregisters its memory before.
func (s *Server) Leave(in Names, _ *None) error {
	for i, name := range in.Names {
		a := s.agents[name]
		if a == nil {
			return fmt.Errorf("no agent %s", name)
		}
		delete(s.agents, name)
		for peer := range a.routes {
			if err := a.forget(peer); err != nil {
				return err
			}
		}
		for end := measure.Now() + patience; a.notifs < in.Notifs; time.Sleep(100 * time.Microsecond) {
			if err := a.drain(); err != nil {
				return err
			}
			if measure.Now() > end {
				return fmt.Errorf("agent %s: %d of %d notifications have come", name, a.notifs, in.Notifs)
			}
		}
		s.notifs += a.notifs
		var err error
		if i%2 == 0 {
			err = a.Deregister(nixlapi.DRAM, a.all(), a.back)
		}
		if err = errors.Join(err, a.Agent.Close(), a.buf.Free()); err != nil {
			return fmt.Errorf("agent %s: %w", name, err)
		}
	}
	return nil
}

// Again registers more memory with an agent and takes it back, as often as told.
func (s *Server) Again(in MoveArgs, _ *None) error {
	a := s.agents[in.Agent]
	if a == nil {
		return fmt.Errorf("no agent %s", in.Agent)
	}
	for range in.Turns {
		b, err := nixlapi.Alloc(lane)
		if err != nil {
			return err
		}
		list := []nixlapi.Desc{b.Desc(0, lane)}
		if err := errors.Join(a.Register(nixlapi.DRAM, list, a.back), a.Deregister(nixlapi.DRAM, list, a.back), b.Free()); err != nil {
			return err
		}
	}
	return nil
}

// Move moves bytes to a peer and back. The peer stays known, and so do the requests.
func (s *Server) Move(in MoveArgs, out *MoveOut) error {
	a := s.agents[in.Agent]
	if a == nil {
		return fmt.Errorf("no agent %s", in.Agent)
	}
	r := a.routes[in.Peer.Name]
	if r == nil {
		var err error
		if r, err = a.meet(in.Peer, in.Place); err != nil {
			return fmt.Errorf("%s: %w", in.Peer.Name, err)
		}
		a.routes[in.Peer.Name] = r
	}
	for k := range in.Turns {
		if in.Silent {
			k |= 1
		}
		if err := a.turn(r, in.Place, k, out); err != nil {
			return fmt.Errorf("%s to %s: %w", in.Agent, in.Peer.Name, err)
		}
	}
	return a.drain()
}

// Meet adds peers and removes them again.
func (s *Server) Meet(in MeetArgs, out *MoveOut) error {
	for i := range in.Times {
		a, p := s.agents[in.Agents[i%len(in.Agents)]], in.Peers[i%len(in.Peers)]
		if a == nil {
			return fmt.Errorf("no agent %s", in.Agents[i%len(in.Agents)])
		}
		if err := a.once(p, in, i, out); err != nil {
			return fmt.Errorf("%s to %s: %w", a.Name(), p.Name, err)
		}
	}
	for _, name := range in.Agents {
		if err := s.agents[name].drain(); err != nil {
			return err
		}
	}
	return nil
}

// once adds a peer, writes to it, reads that back, and removes the peer.
func (a *agent) once(p Peer, in MeetArgs, k int, out *MoveOut) error {
	if _, err := a.Load(p.MD); err != nil {
		return err
	}
	text := []byte(p.Name)
	msg := &text
	if in.Silent {
		msg = nil
	} else {
		out.Notifs++
	}
	c, err := a.pair(p, in.Place, k%Lanes, small, msg)
	if err != nil {
		return err
	}
	if err := a.batch([]pair{c}, k%Lanes, small, out); err != nil {
		return err
	}
	return errors.Join(c.release(), a.Invalidate(p.Name))
}

// Forget removes a peer that an agent knows, also one that has died.
func (s *Server) Forget(in MoveArgs, _ *None) error {
	a := s.agents[in.Agent]
	if a == nil {
		return fmt.Errorf("no agent %s", in.Agent)
	}
	return a.forget(in.Peer.Name)
}

func (a *agent) forget(peer string) error {
	r := a.routes[peer]
	if r == nil {
		return nil
	}
	delete(a.routes, peer)
	for _, c := range slices.Concat(r.small, r.withNotif) {
		if err := c.release(); err != nil {
			return err
		}
	}
	if a.Knows(peer) { // the agent has forgotten a peer whose end it has seen
		return a.Invalidate(peer)
	}
	return nil
}

// meet makes the requests to a peer.
func (a *agent) meet(p Peer, at int) (*route, error) {
	if _, err := a.Load(p.MD); err != nil {
		return nil, err
	}
	r, msg := &route{at: p}, []byte("turn")
	for n := range Lanes {
		c, err := a.pair(p, at, n, small, nil)
		if err != nil {
			return nil, err
		}
		r.small = append(r.small, c)
		if c, err = a.pair(p, at, n, small, &msg); err != nil {
			return nil, err
		}
		r.withNotif = append(r.withNotif, c)
	}
	return r, nil
}

// pair makes the requests of one lane. Only the WRITE notifies.
func (a *agent) pair(p Peer, at, n int, size uint64, notif *[]byte) (c pair, err error) {
	there := []nixlapi.Desc{{Addr: p.Base + uint64(at*place+n*lane), Len: size}}
	from, to := a.buf.Desc(uint64(places*place+n*lane), size), a.buf.Desc(uint64((places+1)*place+n*lane), size)
	c.write, err = a.CreateXfer(nixlapi.Write, nixlapi.DRAM, []nixlapi.Desc{from}, there, p.Name, nixlapi.XferOpts{Backend: a.back, Notif: notif})
	if err != nil {
		return c, err
	}
	c.read, err = a.CreateXfer(nixlapi.Read, nixlapi.DRAM, []nixlapi.Desc{to}, there, p.Name, nixlapi.XferOpts{Backend: a.back})
	return c, err
}

func (c pair) release() error { return errors.Join(c.write.Release(), c.read.Release()) }

// turn is one batch of Lanes: small with kept requests, now and then with new ones, with notifications, or large.
func (a *agent) turn(r *route, at, k int, out *MoveOut) error {
	switch {
	case k%large == large-1:
		return a.newBatch(r, at, lane, out)
	case k%fresh == fresh-1:
		return a.newBatch(r, at, small, out)
	case k%fresh == 0:
		out.Notifs += Lanes
		return a.batch(r.withNotif, 0, small, out)
	}
	return a.batch(r.small, 0, small, out)
}

func (a *agent) newBatch(r *route, at int, size uint64, out *MoveOut) error {
	var list []pair
	for n := range Lanes {
		c, err := a.pair(r.at, at, n, size, nil)
		if err != nil {
			return err
		}
		list = append(list, c)
	}
	err := a.batch(list, 0, size, out)
	for _, c := range list {
		err = errors.Join(err, c.release())
	}
	return err
}

// batch writes bytes that no batch before had to lanes from first on, reads them back and compares.
func (a *agent) batch(list []pair, first int, size uint64, out *MoveOut) error {
	if a.turns++; a.turns%512 == 0 {
		if err := a.drain(); err != nil {
			return err
		}
	}
	all := uint64(len(list)-1)*lane + size
	sent, back := a.buf.B[places*place+first*lane:][:all], a.buf.B[(places+1)*place+first*lane:][:all]
	for n := range list {
		fill(sent[n*lane:][:size], a.turns<<8|uint64(n))
	}
	if err := together(list, func(c pair) *nixlapi.Xfer { return c.write }); err != nil {
		return err
	}
	if err := together(list, func(c pair) *nixlapi.Xfer { return c.read }); err != nil {
		return err
	}
	for n := range list {
		if d := differs(back[n*lane:][:size], sent[n*lane:][:size]); d >= 0 {
			return fmt.Errorf("wrong bytes: byte %d of lane %d in batch %d", d, first+n, a.turns)
		}
	}
	out.Transfers += 2 * uint64(len(list))
	out.Bytes += 2 * uint64(len(list)) * size
	return nil
}

// together posts one request of each pair, and waits for all.
func together(list []pair, of func(pair) *nixlapi.Xfer) error {
	var open [Lanes]*nixlapi.Xfer
	left := 0
	for _, c := range list {
		x := of(c)
		switch st := x.Post(); {
		case st.Failed():
			return st.Err("post_xfer_req")
		case st == nixlapi.InProgress:
			open[left] = x
			left++
		}
	}
	end := measure.Now() + patience
	for looks := 0; left > 0; looks++ {
		for i := 0; i < left; {
			switch st := open[i].Status(); {
			case st.Failed():
				return st.Err("get_xfer_status")
			case st == nixlapi.InProgress:
				i++
			default:
				left--
				open[i] = open[left]
			}
		}
		if left > 0 && looks > 16 { // the peer's progress thread may need this core
			if time.Sleep(20 * time.Microsecond); measure.Now() > end {
				return fmt.Errorf("%d transfers have no end within %v", left, patience)
			}
		}
	}
	return nil
}
