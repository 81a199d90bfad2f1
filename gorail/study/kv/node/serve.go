package node

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"gorail/gorail/measure"
	"gorail/internal/pattern"
	"gorail/nixlapi"
)

// held is what a prefill node knows of its slots. vLLM's prefill worker holds the blocks of a request until a notification names it.
type held struct {
	mu   sync.Mutex
	read map[uint64]int // notifications of requests
}

// doze is how long a serving node sleeps at most when nothing happens. Engines look between their steps, some ms apart.
const doze = 500 * time.Microsecond

// Serve begins to answer Prompt, Meet and Pull. One goroutine uses the agent, as vLLM's worker does.
func (s *Server) Serve(None, *None) error {
	if s.pulls != nil || s.agent == nil {
		return errors.New("the node is not open, or serves already")
	}
	s.pulls, s.held = make(chan func(), 64), &held{read: map[uint64]int{}}
	go s.serve()
	return nil
}

// pull is a request that is read.
type pull struct {
	PullArgs
	x     *nixlapi.Xfer
	peer  *remote
	here  []int32 // its blocks
	there []int32 // those of the prefill node
	began time.Duration
	done  chan PullOut
}

// serve is that goroutine.
func (s *Server) serve() {
	var flying []*pull
	for {
		var next func()
		if len(flying) > 0 {
			select {
			case next = <-s.pulls:
			case <-time.After(nap):
			}
		} else {
			select {
			case next = <-s.pulls:
			case <-time.After(doze):
			}
		}
		if next != nil {
			next()
		}
		flying = append(flying, s.begun...)
		s.begun = nil
		s.freed()
		rest := flying[:0]
		for _, p := range flying {
			if !s.ended(p) {
				rest = append(rest, p)
			}
		}
		flying = rest
	}
}

// freed takes notifications in: the requests that decode nodes have read.
func (s *Server) freed() {
	list, err := s.agent.Notifs()
	if err != nil || len(list) == 0 {
		return
	}
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	for _, m := range list {
		var n note
		if n.parse(m.Msg) {
			s.held.read[uint64(n.Request)]++
		}
	}
}

// times is how many notifications of a request have come.
func (h *held) times(request uint64) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.read[request]
}

// Prompt computes a prompt.
func (s *Server) Prompt(in PromptArgs, _ *None) error {
	if s.pulls == nil || s.in.Decode || in.Slot < 0 || in.Slot >= s.in.slots() {
		return fmt.Errorf("no slot %d of a serving prefill node", in.Slot)
	}
	if in.Before != 0 {
		for end := measure.Now() + in.Within; s.held.times(in.Before) == 0; time.Sleep(nap) {
			if measure.Now() > end {
				return fmt.Errorf("request %d was read, and its notification has not come after %v", in.Before, in.Within)
			}
		}
		if n := s.held.times(in.Before); n > 1 {
			return fmt.Errorf("the notification of request %d has come %d times", in.Before, n)
		}
		s.held.mu.Lock()
		delete(s.held.read, in.Before)
		s.held.mu.Unlock()
	}
	size := s.in.Shape.Bytes()
	pattern.Fill(s.buf.B[uint64(in.Slot)*size:uint64(in.Slot+1)*size], in.Request, 0)
	return nil
}

// Meet makes an engine of a prefill node known: what vLLM's handshake over its side channel does. An older one is forgotten.
func (s *Server) Meet(in Peer, _ *None) error {
	if s.pulls == nil || !s.in.Decode || in.Number < 0 || in.Number >= s.in.Prefills {
		return fmt.Errorf("no serving decode node for prefill %d", in.Number)
	}
	done := make(chan error, 1)
	s.pulls <- func() {
		s.forget(in.Number)
		err := s.Load(in, nil)
		if err != nil {
			s.forget(in.Number)
			_ = s.agent.Invalidate(in.Name)
		}
		done <- err
	}
	return <-done
}

// forget removes a prefill node.
func (s *Server) forget(number int) {
	p := s.peers[number]
	if p == nil {
		return
	}
	delete(s.peers, number)
	if p.list != nil {
		_ = p.list.Release()
	}
	_ = s.agent.Invalidate(p.Name) // the agent may have forgotten it before
}

// Pull reads a request, and compares its bytes.
func (s *Server) Pull(in PullArgs, out *PullOut) error {
	if s.pulls == nil || !s.in.Decode {
		return errors.New("no serving decode node")
	}
	p := &pull{PullArgs: in, done: make(chan PullOut, 1), began: measure.Now()}
	s.pulls <- func() { s.read(p) }
	*out = <-p.done
	if out.Failed == "" && !out.Unknown {
		out.Wrong = s.differ(p)
	}
	return nil
}

// read posts a READ over the prepared lists, with the notification that frees the blocks.
func (s *Server) read(p *pull) {
	p.peer = s.peers[p.Prefill]
	if p.peer == nil || p.peer.Life != p.Life {
		p.done <- PullOut{Unknown: true}
		return
	}
	sh := s.in.Shape
	p.here, p.there = s.ids(true, p.Prefill, s.in.Number, p.Slot, 0, sh.Layers), s.ids(false, p.Prefill, 0, p.Slot, 0, sh.Layers)
	n := note{Request: uint32(p.Request)}
	msg := n.bytes()
	x, err := s.agent.MakeXfer(nixlapi.Read, s.local, p.here, p.peer.list, p.there, nixlapi.XferOpts{Backend: s.back, Notif: &msg})
	if err != nil {
		s.fail(p, err)
		return
	}
	p.x = x
	if st := x.Post(); st.Failed() {
		s.fail(p, st.Err("post_xfer_req"))
		return
	}
	s.begun = append(s.begun, p)
}

// ended looks at a request in flight, and answers when it has ended.
func (s *Server) ended(p *pull) bool {
	switch st := p.x.Status(); {
	case st == nixlapi.Success:
		took := measure.Now() - p.began
		_ = p.x.Release()
		p.done <- PullOut{Took: took}
	case st.Failed():
		s.fail(p, st.Err("get_xfer_status"))
	case measure.Now()-p.began > p.Within:
		s.fail(p, fmt.Errorf("no end within %v", p.Within))
	default:
		return false
	}
	return true
}

// fail answers, and releases the request. If the agent has forgotten the peer, the next request meets it again.
func (s *Server) fail(p *pull, why error) {
	if p.x != nil && p.x.Release() != nil {
		_ = p.x.Release() // the agent may refuse the first release
	}
	if s.peers[p.Prefill] == p.peer && !s.agent.Knows(p.peer.Name) {
		s.forget(p.Prefill)
	}
	p.done <- PullOut{Failed: why.Error(), Took: measure.Now() - p.began}
}

// differ compares a slot with the request's bytes.
func (s *Server) differ(p *pull) string {
	sh := s.in.Shape
	for k, id := range p.here {
		at := uint64(id) * sh.Block
		if d := pattern.Diff(s.buf.B[at:at+sh.Block], p.Request, uint64(int(p.there[k])-p.Slot*sh.blocks())*sh.Block); d >= 0 {
			return fmt.Sprintf("request %d: block %d of prefill %d differs at byte %d", p.Request, k, p.Prefill, d)
		}
	}
	return ""
}

// Settle gives memory back to the system, so that what stays can be compared.
func (s *Server) Settle(None, *None) error {
	debug.FreeOSMemory()
	return nil
}

// Step sets the clock of this process alone forward, or back.
func (s *Server) Step(in time.Duration, _ *None) error {
	if s.remote {
		return errors.New("refused from another host")
	}
	return stepClock(in)
}
