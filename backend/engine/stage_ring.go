package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/peer"
	"gorail/backend/region"
	"gorail/backend/wire"
)

// ringKey says what memory of the peer's a ring is in.
type ringKey struct {
	mem int32
	dev uint64
}

// peerRing is a ring of the peer's that is ours to use.
type peerRing struct {
	key    ringKey
	ready  chan struct{} // closed when the peer has answered
	err    error         // what was asked for is refused for the rest of the session; once ready
	region *region.Region
	apart  atomic.Bool // it is on the peer's GPU and can't be mapped here
	slot   uint64
	free   chan uint64 // addresses
}

// asking is what a session of ours has asked of its target, and has not been answered yet: for staging, and for its end.
type asking struct {
	r    *remote
	out  *peer.Out     // set once it is dialed
	over chan struct{} // closed with the session

	parting *parting // of the session's end; nil: it asks nothing; under remote.mu

	mu     sync.Mutex
	rings  map[ringKey]*peerRing
	opens  map[uint64]*peerRing
	copies map[uint64]chan error
	told   map[string]bool // reasons that are in the log
}

func newAsking(r *remote) *asking {
	return &asking{r: r, over: make(chan struct{}), rings: map[ringKey]*peerRing{}, opens: map[uint64]*peerRing{}, copies: map[uint64]chan error{},
		told: map[string]bool{}}
}

// end: the session is over.
func (a *asking) end() { close(a.over) }

// forgetRings lets go of the peer's rings: they end with the session. Under mu.
func (r *remote) forgetRings() {
	a := r.asked
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.rings {
		if p.region != nil && r.regions[p.region.Range] == p.region {
			r.leave(p.region)
		}
	}
}

var errSessionOver = errors.New("the session with the peer has ended")

// ring gives the peer's ring in that memory; the first who wants it asks for it.
func (a *asking) ring(k ringKey, stop <-chan struct{}) (*peerRing, error) {
	a.mu.Lock()
	p := a.rings[k]
	if p == nil {
		p = &peerRing{key: k, ready: make(chan struct{})}
		id := a.r.e.ids.Add(1)
		a.rings[k], a.opens[id] = p, p
		a.out.Stage(&wire.RingReq{ID: id, Mem: k.mem, Dev: k.dev})
	}
	a.mu.Unlock()
	if err := a.answered(p.ready, stop); err != nil {
		return nil, err
	}
	return p, p.err
}

// answered waits for the peer.
func (a *asking) answered(done <-chan struct{}, stop <-chan struct{}) error {
	r := a.r
	timer := time.NewTimer(r.e.opt.XferTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-stop:
		return errStopped
	case <-a.over:
		return errSessionOver
	case <-timer.C:
		return fmt.Errorf("peer %q has not answered within xfer_timeout (%v)", r.name, r.e.opt.XferTimeout)
	}
}

// copyThere has the peer copy between a slot of its ring and its memory, and waits until it has: nobody but the peer can stop it, so a
// transfer that is stopped waits, too.
func (a *asking) copyThere(f *wire.Copy) error {
	r := a.r
	f.ID = r.e.ids.Add(1)
	done := make(chan error, 1)
	a.mu.Lock()
	a.copies[f.ID] = done
	a.mu.Unlock()
	a.out.Stage(f)
	timer := time.NewTimer(r.e.opt.XferTimeout)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-a.over:
		return errSessionOver
	case <-timer.C: // it may still copy: without it nothing is known of the memory
		err := fmt.Errorf("peer %q has not copied %d pieces within xfer_timeout (%v)", r.name, len(f.Pieces), r.e.opt.XferTimeout)
		initiatorHandler{r, a}.giveUp(err)
		return err
	}
}

// Staged has the target's answers.
func (h initiatorHandler) Staged(f wire.Frame) {
	r, a := h.r, h.asked
	if !r.e.enter() {
		return
	}
	defer r.e.leave()
	switch f := f.(type) {
	case *wire.Ring:
		a.mu.Lock()
		p := a.opens[f.ID]
		delete(a.opens, f.ID)
		a.mu.Unlock()
		if p != nil {
			a.opened(p, f)
		}
	case *wire.Copied:
		a.mu.Lock()
		done := a.copies[f.ID]
		delete(a.copies, f.ID)
		a.mu.Unlock()
		if done != nil {
			var err error
			if f.Text != "" {
				err = fmt.Errorf("peer %q: %s", r.name, f.Text)
			}
			done <- err
		}
	}
}

// load enters a range of the peer's that is good for this session alone.
func (a *asking) load(rng wire.Range) (*region.Region, error) {
	r := a.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked != a || r.state != ready {
		return nil, errSessionOver
	}
	g, err := r.enter(rng)
	if err == nil {
		r.pull()
	}
	return g, err
}

// opened enters a ring that the peer gives us.
func (a *asking) opened(p *peerRing, f *wire.Ring) {
	r := a.r
	defer close(p.ready)
	if f.Range.Len == 0 {
		p.err = fmt.Errorf("peer %q has no memory for staging: %s", r.name, f.Text)
		return
	}
	if f.Range.Mem != p.key.mem || p.key.mem == region.VRAM && f.Range.Dev != p.key.dev {
		p.err = fmt.Errorf("peer %q offers a ring in memory %d of device %d instead of %d of %d", r.name, f.Range.Mem, f.Range.Dev, p.key.mem, p.key.dev)
		return
	}
	g, err := a.load(f.Range)
	if err != nil {
		p.err = err
		return
	}
	a.mu.Lock()
	p.region, p.slot = g, f.Slot
	a.mu.Unlock()
	n := f.Range.Len / f.Slot
	p.free = make(chan uint64, n)
	for i := range n {
		p.free <- f.Range.Addr + i*f.Slot
	}
}
