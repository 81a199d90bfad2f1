package staging

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/region"
	"gorail/backend/wire"
)

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

// Session is what staging needs of a session that is ready.
type Session interface {
	// Send sends a frame to the peer: *wire.RingReq or *wire.Copy.
	Send(f wire.Frame)
	// Load enters a range of the peer's that is good for this session alone, until Unload.
	Load(rng wire.Range) (*region.Region, error)
	Unload(g *region.Region)
	// Notify queues a notification. core.ErrFull: not now.
	Notify(msg []byte) error
	// Quiet says that nothing is under way over links of the session that have stopped; those that have are fenced.
	Quiet() bool
	// GiveUp ends the session.
	GiveUp(err error)
}

// Requests is what a session of ours asks of its target for staged transfers.
type Requests struct {
	side    *Side
	name    string // the peer's
	session Session
	timeout time.Duration // option xfer_timeout
	over    chan struct{} // closed with the session

	mu     sync.Mutex
	rings  map[ringKey]*peerRing
	opens  map[uint64]*peerRing
	copies map[uint64]chan error
	told   map[string]bool // reasons that are in the log
}

var errStopped = errors.New("stopped")

// NewRequests has asked nothing yet.
func NewRequests(side *Side, peer string, s Session, timeout time.Duration) *Requests {
	return &Requests{side: side, name: peer, session: s, timeout: timeout, over: make(chan struct{}), rings: map[ringKey]*peerRing{},
		opens: map[uint64]*peerRing{}, copies: map[uint64]chan error{}, told: map[string]bool{}}
}

// End says that the session is over. It is called once.
func (a *Requests) End() { close(a.over) }

// Forget lets go of the peer's rings: they end with the session.
func (a *Requests) Forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.rings {
		if p.region != nil {
			a.session.Unload(p.region)
		}
	}
}

// ErrSessionOver says that the session has ended in which a run began.
var ErrSessionOver = errors.New("the session with the peer has ended")

// ring gives the peer's ring in that memory; the first who wants it asks for it.
func (a *Requests) ring(k ringKey, stop <-chan struct{}) (*peerRing, error) {
	a.mu.Lock()
	p := a.rings[k]
	if p == nil {
		p = &peerRing{key: k, ready: make(chan struct{})}
		id := a.side.Life.NextID()
		a.rings[k], a.opens[id] = p, p
		a.session.Send(&wire.RingReq{ID: id, Mem: k.mem, Dev: k.dev})
	}
	a.mu.Unlock()
	if err := a.answered(p.ready, stop); err != nil {
		return nil, err
	}
	return p, p.err
}

// answered waits for the peer.
func (a *Requests) answered(done <-chan struct{}, stop <-chan struct{}) error {
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-stop:
		return errStopped
	case <-a.over:
		return ErrSessionOver
	case <-timer.C:
		return fmt.Errorf("peer %q has not answered within xfer_timeout (%v)", a.name, a.timeout)
	}
}

// copyThere has the peer copy between a slot of its ring and its memory, and waits until it has: nobody but the peer can stop it, so a
// transfer that is stopped waits, too.
func (a *Requests) copyThere(f *wire.Copy) error {
	f.ID = a.side.Life.NextID()
	done := make(chan error, 1)
	a.mu.Lock()
	a.copies[f.ID] = done
	a.mu.Unlock()
	a.session.Send(f)
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-a.over:
		return ErrSessionOver
	case <-timer.C: // it may still copy: without it nothing is known of the memory
		err := fmt.Errorf("peer %q has not copied %d pieces within xfer_timeout (%v)", a.name, len(f.Pieces), a.timeout)
		a.session.GiveUp(err)
		return err
	}
}

// Answer has the target's: *wire.Ring or *wire.Copied.
func (a *Requests) Answer(f wire.Frame) {
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
				err = fmt.Errorf("peer %q: %s", a.name, f.Text)
			}
			done <- err
		}
	}
}

// opened enters a ring that the peer gives us.
func (a *Requests) opened(p *peerRing, f *wire.Ring) {
	defer close(p.ready)
	if f.Range.Len == 0 {
		p.err = fmt.Errorf("peer %q has no memory for staging: %s", a.name, f.Text)
		return
	}
	if f.Range.Mem != p.key.mem || p.key.mem == region.VRAM && f.Range.Dev != p.key.dev {
		p.err = fmt.Errorf("peer %q offers a ring in memory %d of device %d instead of %d of %d", a.name, f.Range.Mem, f.Range.Dev, p.key.mem, p.key.dev)
		return
	}
	g, err := a.session.Load(f.Range)
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
