package engine

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/notify"
	"gorail/backend/peer"
	"gorail/backend/quota"
	"gorail/backend/rlimit"
	"gorail/backend/wire"
)

// target is a session in which we serve: a peer writes to and reads from our memory and sends us notifications. It may
// be a peer whose metadata we never loaded.
type target struct {
	e  *Engine
	in *peer.In
	id uint64

	events serial // what the core has for us

	mu      sync.Mutex
	gone    bool
	since   time.Time   // it began then
	missed  bool        // the log has it that no data connection came in
	known   bool        // the log has it that the peer is connected
	waits   bool        // for other links, to say so
	closing atomic.Bool // the same, for readers without mu
	frozen  bool        // it takes no notifications in any more
	over    bool        // its links are gone
	lost    time.Time   // when it ended, if it takes notifications in since
	sess    core.Session
	links   []*link
	usage   quota.Usage // of Engine.room
	pace    *quota.Pace // of what it asks for
	staged  staged
	revokes map[uint64]chan struct{} // closed with the answer, or when the peer is gone

	// The order of notifications, while Go keeps it. Guarded by asmMu.
	asmMu    sync.Mutex
	asm      *notify.Assembler
	skip     map[uint64]bool // numbers that the sender gave up
	handled  uint64
	pending  atomic.Int64 // bytes of asm, in Engine.pending
	draining bool         // somebody waits until
	drainTo  uint64       // all notifications below it have arrived
	refused  bool         // it sent something impossible, or the session is frozen: nothing more is taken
	first    uint64       // the initiator's session in which the numbers began
}

// targetHandler is what the control channel calls for sessions of peers.
type targetHandler struct{ e *Engine }

// errLeaving is the answer of an engine that will be gone in a moment.
var errLeaving = &peer.RejectError{Code: wire.CodeEngine, Text: "the engine is being destroyed"}

var errHungUp = errors.New("the initiator hung up while its Hello waited for its turn")

// Hello opens our endpoints for a peer that has proved that it holds our token.
func (h targetHandler) Hello(in *peer.In, hello wire.Hello) (peer.Accept, error) {
	e := h.e
	if e.closed.Load() || !e.enter() {
		return peer.Accept{}, errLeaving
	}
	defer e.leave()
	defer e.hellos.lock(in.Engine())()
	if err := e.endOlder(in); err != nil { // it may wait for copies and for endpoints to close
		return peer.Accept{}, err
	}
	endTurn, ok := e.opening.Take(in.Done(), nil)
	if !ok {
		return peer.Accept{}, errLeaving
	}
	defer endTurn()
	if in.HungUp() { // Done is for sessions that have begun
		return peer.Accept{}, errHungUp
	}
	before := e.takenBefore(in.Engine(), hello.After)
	if before == nil {
		before = &taken{first: in.Session(), asm: notify.New(notify.Limits{}), skip: map[uint64]bool{}}
	}
	t := &target{e: e, in: in, since: time.Now(), id: e.ids.Add(1), revokes: map[uint64]chan struct{}{}, asm: before.asm, skip: before.skip, first: before.first,
		pace: quota.NewPace(500*time.Millisecond, 4), staged: staged{stop: make(chan struct{}), ended: make(chan struct{})}}
	if err := t.makeRoom(hello.Offers); err != nil {
		return peer.Accept{}, err
	}
	s, err := e.core.NewSession(t.id, hello.Agent)
	if err != nil {
		t.leaveRoom()
		return peer.Accept{}, err
	}
	t.sess = s
	accept := peer.Accept{NextSeq: t.asm.Next(), Have: distances(t.asm)}
	s.Continue(accept.NextSeq, len(accept.Have) > 0)
	var last error
	open := 0
	for i, o := range hello.Offers {
		offer := wire.EndpointOffer{Rail: o.Rail, Own: o.Own}
		l, err := t.open(i, o)
		if l != nil {
			offer.ID = l.id
		}
		switch {
		case err == nil:
			offer.Addr = l.ep.Addr()
			open++
		case l != nil && l.rail.Waits() || len(o.Addr) == 0: // in the log of the side that lacks it
			last = err
		default:
			last = err
			e.warnOf(in, "no endpoint for a peer on a rail", "number", o.Rail, "err", rlimit.Advise(err))
		}
		accept.Offers = append(accept.Offers, offer)
	}
	if open == 0 {
		t.drop()
		return peer.Accept{}, last
	}
	e.mu.Lock()
	late := e.closed.Load()
	if !late {
		e.targets[in] = t
		e.byID[t.id] = t
		e.byEngine[in.Engine()] = append(e.byEngine[in.Engine()], t)
		delete(e.taken, in.Engine()) // it is t's now, or nobody asks for it any more
	}
	e.mu.Unlock()
	if late {
		t.drop()
		return peer.Accept{}, errLeaving
	}
	t.asmMu.Lock()
	t.holdPending(int64(t.asm.Counts().Bytes)) // what the session before left
	t.asmMu.Unlock()
	e.after(e.opt.ConnectTimeout, t.proofLate)
	return accept, nil
}

// open makes the target's end of a link.
func (t *target) open(num int, o wire.EndpointOffer) (*link, error) {
	if int(o.Rail) >= len(t.e.rails) {
		return nil, fmt.Errorf("we have no rail %d", o.Rail)
	}
	l, err := t.e.openLink(num, int(o.Rail), int(o.Own))
	l.target, l.peerID = t, o.ID
	t.links = append(t.links, l)
	if err == nil && len(o.Addr) == 0 {
		err = errors.New("the peer has no endpoint for it")
	}
	if err == nil {
		err = t.e.connect(l, t.sess, o, t.from(), core.Target, false)
	}
	if err != nil {
		_ = t.e.quiesce(l) // it is in the log
	}
	return l, err
}

func (t *target) path() string { return strings.Join(names(inUse(t.links)), ",") }

// drop ends the session's access to our memory and its links.
func (t *target) drop() {
	if quiet := t.e.drop(t.links, t.sess, -3, nil); quiet == nil {
		t.leaveRoom()
	} else {
		t.e.late.Go(func() { <-quiet; t.leaveRoom() })
	}
	t.links = nil
}

func (e *Engine) target(in *peer.In) *target {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.targets[in]
}

// KeysWanted gives the keys of registered ranges and notes who has them.
func (h targetHandler) KeysWanted(in *peer.In, ranges []wire.Range) []wire.KeyEntry {
	t := h.e.target(in)
	if t == nil || !t.pace.Wait(in.Done()) {
		return make([]wire.KeyEntry, len(ranges))
	}
	start := time.Now()
	defer func() { t.pace.Spend(time.Since(start)) }()
	return h.e.regions.KeysFor(ranges, t, &t.closing)
}

// Revoke tells the peer that regions go away; the channel closes with its answer.
func (t *target) Revoke(regions []uint64) <-chan struct{} {
	done := make(chan struct{})
	id := t.e.ids.Add(1)
	t.mu.Lock()
	if t.gone {
		close(done)
		t.mu.Unlock()
		return done
	}
	t.revokes[id] = done
	t.mu.Unlock()
	t.in.Revoke(id, regions)
	return done
}

// AwaitRevoked waits for the answer until the deadline; a peer that does not answer loses its endpoint.
func (t *target) AwaitRevoked(done <-chan struct{}, deadline time.Time) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C:
		select {
		case <-done: // both: it did answer
			return
		default:
		}
	}
	t.e.warnOf(t.in, "peer did not give a deregistered region back in time: its endpoint is closed", "cancel_timeout", t.e.opt.CancelTimeout)
	t.close()
	t.in.Close("no answer to a revocation within cancel_timeout")
}

// Revoked is the peer's answer: nothing of its own is in flight on the region.
func (h targetHandler) Revoked(in *peer.In, id uint64, all bool) {
	if !h.e.enter() {
		return
	}
	defer h.e.leave()
	t := h.e.target(in)
	if t == nil {
		return
	}
	if all { // it has given up every key: nobody need wait for it until it asks again
		h.e.regions.DropHolder(t)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if done := t.revokes[id]; done != nil {
		delete(t.revokes, id)
		close(done)
	}
}

// Gone: the control channel to the peer is gone, and with it its access.
func (h targetHandler) Gone(in *peer.In, err error) {
	if !h.e.enter() {
		return
	}
	defer h.e.leave()
	t := h.e.target(in)
	if t == nil {
		return
	}
	h.e.log.Info("peer's session ended", "peer", in.Agent(), "reason", err)
	if time.Since(t.since) > h.e.opt.ConnectTimeout/2 {
		t.proofLate()
	}
	t.leave(!errors.Is(err, peer.ErrPeerClosed) && !errors.Is(err, peer.ErrDead))
}
