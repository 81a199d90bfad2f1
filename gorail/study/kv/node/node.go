package node

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gorail/gorail/bench/layout"
	"gorail/gorail/door"
	"gorail/gorail/measure"
	"gorail/gorail/side"
	"gorail/internal/pattern"
	"gorail/internal/subprocess"
	"gorail/nixlapi"
)

// Main serves the study until it closes the connection.
func Main() error {
	err := subprocess.Serve(Service, &Server{})
	if errors.Is(err, subprocess.ErrAlone) {
		return errors.New("only gorail study kv may start this command")
	}
	return err
}

// Server is the process. Its exported methods are the commands, one after the other.
type Server struct {
	remote bool // the study is on another host
	opened atomic.Bool
	in     OpenArgs
	agent  *nixlapi.Agent
	back   *nixlapi.Backend
	buf    *nixlapi.Buffer
	local  *nixlapi.Dlist
	peers  map[int]*remote // by number

	orders map[uint64][]int32 // of a slot's blocks, by seed

	loop  *loop
	pulls chan func() // to the goroutine that uses the agent; nil before Serve
	held  *held
	begun []*pull // by the call that runs
}

// Remote is a node for a study on another host. It takes its wheel and its plugins from its own environment.
func Remote() *Server { return &Server{remote: true} }

// remote is a peer with its prepared list.
type remote struct {
	Peer
	list *nixlapi.Dlist
}

// slots is the number of a node's slots.
func (in OpenArgs) slots() int {
	if in.Decode {
		return in.Shape.Slots * in.Prefills
	}
	return in.Shape.Slots
}

// Open makes the pool, the agent and its backend.
func (s *Server) Open(in OpenArgs, out *Peer) (err error) {
	if s.remote {
		if s.opened.Swap(true) {
			return errors.New("the process is open")
		}
		if err := in.afar(); err != nil {
			return err
		}
		in.Wheel, in.PluginDir = os.Getenv("NIXL_WHEEL_DIR"), ""
	}
	s.in, s.peers, s.orders = in, map[int]*remote{}, map[uint64][]int32{}
	if in.Clock {
		if err := ownClock(); err != nil {
			return err
		}
	}
	if err := side.Environ(in.PluginDir, in.Env); err != nil {
		return err
	}
	lib, err := nixlapi.Open(in.Wheel)
	if err != nil {
		return err
	}
	size := uint64(in.slots()) * in.Shape.Bytes()
	if s.buf, err = nixlapi.Alloc(int(size)); err != nil {
		return fmt.Errorf("a pool of %d bytes: %w", size, err)
	}
	if s.agent, err = lib.NewAgent(in.Name, nixlapi.Config{ProgThread: true}); err != nil {
		return err
	}
	if s.back, err = s.agent.CreateBackend(in.Backend, in.Params); err != nil {
		return fmt.Errorf("backend %s: %w", in.Backend, err)
	}
	if err := s.agent.Register(nixlapi.DRAM, []nixlapi.Desc{s.buf.Desc(0, size)}, s.back); err != nil {
		return err
	}
	pattern.Fill(s.buf.B, s.seed(), 0)
	if s.local, err = s.agent.PrepDlist(nixlapi.LocalSide, nixlapi.DRAM, s.descs(s.buf.Addr(), in.slots()), s.back); err != nil {
		return err
	}
	out.MD, err = s.agent.Metadata()
	out.Name, out.Number, out.Base, out.Pid, out.Life, out.Versions = in.Name, in.Number, s.buf.Addr(), os.Getpid(), in.Life, side.Versions(in.Wheel)
	return err
}

// What a study on another host may ask for, beside what door refuses. A pool of this size has lists of half a gigabyte.
const (
	mostBlocks   = 1 << 24
	mostPrefills = 1024
	mostSlots    = 4096
	mostLayers   = 1024
)

// afar refuses what a study on another host must not ask for. Such a node is a decode node: it listens, reads what it is told, and writes
// nothing.
func (in *OpenArgs) afar() error {
	if err := errors.Join(door.Env(in.Env), door.Params(in.Params), door.Backend(in.Backend)); err != nil {
		return err
	}
	sh := in.Shape
	if !in.Decode || in.Prefills < 1 || in.Prefills > mostPrefills || sh.Slots < 1 || sh.Slots > mostSlots || sh.Layers < 1 || sh.Layers > mostLayers || sh.Blocks < 1 || sh.Blocks > mostBlocks ||
		in.slots()*sh.blocks() > mostBlocks || sh.Block < 1 || sh.Block > 1<<30 {
		return fmt.Errorf("a pool of %+v for %d prefill nodes is refused from another host: it may ask for a decode node with %d blocks", sh, in.Prefills, mostBlocks)
	}
	return door.Room(uint64(in.slots()) * sh.Bytes())
}

// seed is that of the node's bytes at the beginning. Those of prefill nodes are what decode nodes get.
func (s *Server) seed() uint64 {
	if s.in.Decode {
		return 1<<32 + uint64(s.in.Number)
	}
	return uint64(s.in.Number)
}

// descs are the blocks of all slots of a pool.
func (s *Server) descs(base uint64, slots int) (out []nixlapi.Desc) {
	for i := range slots * s.in.Shape.blocks() {
		out = append(out, nixlapi.Desc{Addr: base + uint64(i)*s.in.Shape.Block, Len: s.in.Shape.Block})
	}
	return out
}

// ids are the blocks of layers in a slot. A request's blocks lie anywhere in its slot, elsewhere on each side.
func (s *Server) ids(decode bool, prefill, number, slot, first, n int) []int32 {
	sh := s.in.Shape
	seed, at := uint64(prefill), slot
	if decode {
		seed, at = uint64(number)<<8|1<<40, prefill*sh.Slots+slot
	}
	if slot < 0 || slot >= sh.Slots || prefill < 0 || prefill >= s.in.Prefills || first < 0 || n < 0 || n > sh.Layers || first > sh.Layers-n {
		return nil // not of this study: the lists do not have it
	}
	all := s.orders[seed]
	if all == nil {
		all = layout.IDs(layout.Random, sh.blocks(), seed)
		s.orders[seed] = all
	}
	out := make([]int32, 0, n*sh.Blocks)
	for _, id := range all[first*sh.Blocks : (first+n)*sh.Blocks] {
		out = append(out, int32(at*sh.blocks())+id)
	}
	return out
}

// Load makes a peer known, and prepares the list of its blocks.
func (s *Server) Load(in Peer, _ *None) error {
	if _, err := s.agent.Load(in.MD); err != nil {
		return err
	}
	slots := s.in.Shape.Slots
	if !s.in.Decode { // the peer is a decode node
		slots *= s.in.Prefills
	}
	list, err := s.agent.PrepDlist(in.Name, nixlapi.DRAM, s.descs(in.Base, slots), s.back)
	s.peers[in.Number] = &remote{in, list}
	return err
}

// Check compares the bytes of slots with those of their prefill nodes.
func (s *Server) Check(in CheckArgs, _ *None) error {
	sh := s.in.Shape
	for _, slot := range in.Slots {
		here := s.ids(true, slot.Prefill, s.in.Number, slot.Slot, 0, sh.Layers)
		there := s.ids(false, slot.Prefill, 0, slot.Slot, 0, sh.Layers)
		if here == nil {
			return fmt.Errorf("no slot %d of prefill %d", slot.Slot, slot.Prefill)
		}
		for k := range here {
			at := uint64(here[k]) * sh.Block
			if d := pattern.Diff(s.buf.B[at:at+sh.Block], uint64(slot.Prefill), uint64(there[k])*sh.Block); d >= 0 {
				return fmt.Errorf("wrong bytes in block %d of prefill %d's slot %d at byte %d", k, slot.Prefill, slot.Slot, d)
			}
		}
	}
	return nil
}

// Close releases the agent. The process ends with its connection.
func (s *Server) Close(None, *None) error {
	var err error
	for _, p := range s.peers {
		if p.list != nil {
			err = errors.Join(err, p.list.Release())
		}
	}
	return errors.Join(err, s.local.Release(), s.agent.Close())
}

// Clock is the time of this process's host.
func (s *Server) Clock(_ None, out *time.Duration) error {
	*out = measure.Now()
	return nil
}

// Die kills the process, as kill -9 does. There is no answer.
func (s *Server) Die(None, *None) error {
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}
