package engine

import (
	"sync"
	"time"

	"gorail/backend/core"
	"gorail/backend/gpu"
	"gorail/backend/peer"
)

// A transfer that ends in an error has its status when nothing of it touches memory of either side any more. What failed on a link waits in
// the core for the link's fence (part.c), or here for the FENCEs of a session that we end. What is said here of our side alone is for
// releases and deregistrations, which don't wait for the peer.

// inUse says that a transfer that was aborted still uses memory of ours.
func (t *transfer) inUse() bool {
	if s := t.run.Load(); s != nil {
		return s.inUse()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed() || t.x.Status() == 0 {
		return false
	}
	return t.leaked.Load() || t.x.Running() && t.e.core.Posted(t.x, core.Link{})
}

func (s *stagedRun) inUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil || s.copies > 0 {
		return true
	}
	for t := range s.inner {
		if t.inUse() {
			return true
		}
	}
	return false
}

// copying makes a copy to or from memory of ours, unless the run is to end.
func (s *stagedRun) copying(f func() error) error {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return gpu.Cancelled
	}
	s.copies++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.copies--
		s.mu.Unlock()
	}()
	return f()
}

// silence ends what a READ that was aborted still writes to memory of ours. False: nothing can.
func (t *transfer) silence() bool {
	if !t.inUse() {
		return true
	}
	t.fence("a READ that was released did not drain within release_wait")
	return !t.inUse()
}

// keep says that a release is refused: not when one was before, and not when the transfer has ended meanwhile.
func (t *transfer) keep() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed() || t.kept {
		return false
	}
	t.kept = true
	t.zombie.Store(false)
	return true
}

// fence fences the links on which a transfer that was aborted has something posted.
func (t *transfer) fence(why string) {
	if s := t.run.Load(); s != nil {
		s.mu.Lock()
		var inner []*transfer
		for i := range s.inner {
			inner = append(inner, i)
		}
		s.mu.Unlock()
		for _, i := range inner {
			i.fence(why)
		}
		return
	}
	r := t.remote
	on := map[*link]uint32{} // and their epochs
	t.mu.Lock()
	r.mu.RLock()
	for _, l := range r.links {
		if !t.freed() && r.state == ready && l.up && t.e.core.Posted(t.x, l.l) {
			on[l] = l.epoch
		}
	}
	r.mu.RUnlock()
	t.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for l, epoch := range on {
		if l.epoch == epoch {
			r.fence(l, why)
		}
	}
}

// leak notes the READs for which a stopped process may still make a copy, though the endpoint is closed. Under mu.
func (r *remote) leak() {
	for _, t := range r.e.active(func(t *transfer) bool { return t.remote == r && t.op == opRead }) {
		t.leaked.Store(true)
	}
}

// unanswered ends the wait for a peer that does not answer a FENCE. A READ is over with our own endpoint, so it waits for no longer than
// cancel_timeout. Of a WRITE bytes may lie in the peer's socket: its status waits up to peer_timeout. The session goes on.
func (r *remote) unanswered(now time.Time) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, l := range r.links {
		if waited := now.Sub(l.since); l.phase == fencing && l.up && waited > r.e.opt.CancelTimeout {
			l.l.Abandon(waited > r.e.opt.PeerTimeout)
		}
	}
}

// parting is the end of a session of ours whose control channel works: the target is asked to close its end of the links on which operations
// failed. nil: of any other session.
type parting struct {
	e     *Engine
	out   *peer.Out
	until time.Time

	mu   sync.Mutex
	left map[uint64]struct{} // FENCEs without an answer
}

// parting: under mu.
func (r *remote) parting() *parting {
	if r.out == nil || r.out.State() != peer.Ready || r.e.closed.Load() {
		return nil
	}
	return &parting{e: r.e, out: r.out, until: time.Now().Add(r.e.opt.PeerTimeout), left: map[uint64]struct{}{}}
}

// ask fences those of the links that need it; they are quiesced, and no endpoint takes their place.
func (p *parting) ask(links []*link) {
	if p == nil {
		return
	}
	for _, l := range links {
		if l.shared() || !l.up || !l.l.Unproved() {
			continue
		}
		if l.phase == fencing { // it has been asked already
			if until := l.since.Add(p.e.opt.PeerTimeout); until.Before(p.until) {
				p.until = until
			}
		}
		id := p.e.ids.Add(1)
		p.mu.Lock()
		p.left[id] = struct{}{}
		p.mu.Unlock()
		p.out.Fence(id, uint8(l.num), l.epoch+1, nil)
	}
}

func (p *parting) answered(id uint64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.left, id)
}

// waits says that an answer is due, and will come as far as is known.
func (p *parting) waits() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.left) > 0 && p.out.State() == peer.Ready && time.Now().Before(p.until) && !p.e.closed.Load()
}
