package staging

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/region"
	"gorail/backend/wire"
)

// peerRing is a ring of the peer that this session may use.
type peerRing struct {
	key        ringKey
	memory     wire.Claim    // the peer's memory that the request named
	refused    bool          // the peer refused that memory, not the ring; valid once ready
	ready      chan struct{} // closed when the peer has answered
	err        error         // why the ring is unavailable, until again; valid once ready
	again      time.Time     // then it may be tried again; zero: there is a ring, or never will be; valid once ready
	made       *wire.Ring    // the peer has made the ring, but it could not be loaded here; valid once ready
	region     *region.Region
	unmappable atomic.Bool // the ring is on the peer's GPU and cannot be mapped here
	packs      bool        // the peer's GPU packs and unpacks chunks in the ring; valid once ready
	slot       uint64
	free       chan uint64 // addresses of free slots
}

// Session is what a run asks of its ready session. It is an interface because sessions lie above: a run needs their lock to send in order
// with REVOKEs, to enter rings, and to know which links may still write into a slot.
type Session interface {
	// Send sends a frame to the peer: *wire.RingReq, *wire.Copy or *wire.PackedCopy.
	Send(f wire.Frame)
	// Load adds a ring of the peer. It stays as long as this session.
	Load(c wire.Claim) (*region.Region, error)
	// Notify queues a notification. core.ErrFull: no space now.
	Notify(msg []byte) error
	// Quiet reports that no operations are in flight on failed links of the session: all such links are fenced.
	Quiet() bool
	// Unmapped notes, for the log, why memory of the peer's GPUs is staged although a rail maps such memory.
	Unmapped(why string)
	// GiveUp ends the session.
	GiveUp(err error)
}

// Requests are the staging requests of our session to its target.
type Requests struct {
	side    *Side
	name    string // of the peer
	session Session
	timeout time.Duration // option xfer_timeout
	over    chan struct{} // closed with the session

	mu     sync.Mutex
	rings  map[ringKey]*peerRing
	opens  map[uint64]*peerRing
	copies map[uint64]*copyRequest
	logged map[string]bool // reasons that are in the log
	paces  map[paceKey]*pace
}

// copyRequest is a copy that the peer has not answered.
type copyRequest struct {
	done   chan error // has room for the answer
	most   uint64     // bytes of a packed chunk that the peer may make
	packed uint64     // that it has made; valid after done
}

var errStopped = errors.New("stopped")

// NewRequests returns Requests with no request sent.
func NewRequests(side *Side, peer string, s Session, timeout time.Duration) *Requests {
	return &Requests{side: side, name: peer, session: s, timeout: timeout, over: make(chan struct{}), rings: map[ringKey]*peerRing{},
		opens: map[uint64]*peerRing{}, copies: map[uint64]*copyRequest{}, logged: map[string]bool{}, paces: map[paceKey]*pace{}}
}

// End marks the session as ended. It is called once.
func (a *Requests) End() { close(a.over) }

// ErrSessionOver means that the session of a run has ended.
var ErrSessionOver = errors.New("the session with the peer has ended")

// ring returns the peer's ring in that memory. The first caller requests it from the peer, for memory of the peer's GPU. If the
// peer refuses the first caller's memory, the others ask for theirs.
func (a *Requests) ring(k ringKey, memory wire.Claim, stop <-chan struct{}) (*peerRing, error) {
	for {
		p, made := a.request(k, memory)
		if made != nil {
			a.opened(p, made)
		}
		if err := a.awaitReply(p.ready, stop); err != nil {
			return nil, err
		}
		if !p.refused || p.memory == memory {
			return p, p.err
		}
	}
}

// request returns the ring, or the request for it that has no answer yet. made is a ring that the caller has to open: a peer that has made
// it ends the session if it is asked again.
func (a *Requests) request(k ringKey, memory wire.Claim) (p *peerRing, made *wire.Ring) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p = a.rings[k]
	if p != nil && !p.expired() {
		return p, nil
	}
	if p != nil {
		made = p.made
	}
	p = &peerRing{key: k, memory: memory, ready: make(chan struct{})}
	a.rings[k] = p
	if made == nil {
		id := a.side.Life.NextID()
		a.opens[id] = p
		a.session.Send(&wire.RingReq{ID: id, Mem: k.mem, For: memory})
	}
	return p, made
}

// refusedFor is how long it holds that there is no ring. Until then transfers fail at once.
const refusedFor = time.Second

// expired reports that there was no ring, and that it may be tried again.
func (p *peerRing) expired() bool {
	select {
	case <-p.ready:
		return !p.again.IsZero() && time.Now().After(p.again)
	default:
		return false
	}
}

// awaitReply waits for the peer's answer.
func (a *Requests) awaitReply(done <-chan struct{}, stop <-chan struct{}) error {
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
		return errcode.StagingUnanswered.Errorf("peer %q has not answered a request for bounce buffers within xfer_timeout (%v)", a.name, a.timeout)
	}
}

// errGaveUp is in the error that ended a session.
var errGaveUp = errors.New("the session is given up")

// copyThere requests a copy between a slot of the peer's ring and the peer's memory, and waits for its end. Only the peer can
// stop that copy, so a stopped transfer waits, too. packs: the peer unpacks in bytes of the slot, or it packs if it can, at most bytes; out tells
// how many bytes that made, 0 in clear.
func (a *Requests) copyThere(f *wire.Copy, packs bool, in, most uint64) (out uint64, err error) {
	f.ID = a.side.Life.NextID()
	r := &copyRequest{done: make(chan error, 1)}
	var frame wire.Frame = f
	if packs {
		frame = &wire.PackedCopy{Copy: *f, Packed: uint32(in)}
	}
	if packs && f.Out {
		r.most = most
	}
	a.mu.Lock()
	a.copies[f.ID] = r
	a.mu.Unlock()
	a.session.Send(frame)
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()
	select {
	case err := <-r.done:
		return r.packed, err
	case <-a.over:
		return 0, ErrSessionOver
	case <-timer.C: // the peer may still be copying; without an answer the state of the memory is unknown
		err := errcode.StagingUnanswered.Errorf("peer %q has not copied %d pieces within xfer_timeout (%v): %w", a.name, len(f.Pieces), a.timeout, errGaveUp)
		a.session.GiveUp(err)
		return 0, err
	}
}

// Answer handles an answer of the target: *wire.Ring, *wire.Copied or *wire.PackedCopied.
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
		a.copied(f, 0)
	case *wire.PackedCopied:
		a.copied(&f.Copied, uint64(f.Packed))
	}
}

func (a *Requests) copied(f *wire.Copied, packed uint64) {
	a.mu.Lock()
	r := a.copies[f.ID]
	delete(a.copies, f.ID)
	a.mu.Unlock()
	if r == nil {
		return
	}
	var err error
	if f.Text != "" {
		err = fmt.Errorf("peer %q: %s", a.name, f.Text)
		if f.Code == wire.CodeUnmapped {
			err = errcode.MemoryUnmapped.Errorf("%w", err)
		}
	}
	if packed > r.most {
		err = errcode.StagingFailed.Errorf("peer %q says that it has compressed a chunk to %d bytes, at most %d were asked for: %w", a.name, packed, r.most, errGaveUp)
		a.session.GiveUp(err)
	}
	r.packed = packed
	r.done <- err
}

// opened records a ring that the peer has made for us.
func (a *Requests) opened(p *peerRing, f *wire.Ring) {
	defer close(p.ready)
	if f.Range.Len == 0 && f.Code == wire.CodeBusy {
		p.again = time.Now().Add(refusedFor)
		p.err = errcode.NoStagingRoom.Errorf("peer %q has no room for staging now: %s; post again later, or use another backend", a.name, f.Text)
		return
	}
	if f.Range.Len == 0 {
		p.err = fmt.Errorf("peer %q has no memory for staging: %s", a.name, f.Text)
		p.again = time.Now().Add(refusedFor)
		if f.Code == wire.CodeMemory {
			p.refused = true
			a.mu.Lock()
			delete(a.rings, p.key)
			a.mu.Unlock()
		}
		return
	}
	if f.Range.Mem != p.key.mem || p.key.mem == region.VRAM && f.Range.Dev != p.key.dev {
		p.err = fmt.Errorf("peer %q offers bounce buffers in memory %d of device %d instead of %d of %d", a.name, f.Range.Mem, f.Range.Dev, p.key.mem, p.key.dev)
		return
	}
	g, err := a.session.Load(f.Range)
	if err != nil {
		p.err, p.made, p.again = err, f, time.Now().Add(refusedFor)
		return
	}
	p.region, p.slot, p.packs = g, f.Slot, f.Code == wire.CodePacks
	n := f.Range.Len / f.Slot
	p.free = make(chan uint64, n)
	for i := range n {
		p.free <- f.Range.Addr + i*f.Slot
	}
}
