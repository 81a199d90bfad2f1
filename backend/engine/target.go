package engine

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/fastpath"
	"gorail/backend/notify"
	"gorail/backend/peer"
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
	sess    fastpath.Session
	links   []*link
	staged  staged
	revokes map[uint64]chan struct{} // closed with the answer, or when the peer is gone

	// The order of notifications, while Go keeps it. Guarded by asmMu.
	asmMu    sync.Mutex
	asm      *notify.Assembler
	skip     map[uint64]bool // numbers that the sender gave up
	handled  uint64
	draining bool   // somebody waits until
	drainTo  uint64 // all notifications below it have arrived
	refused  bool   // it sent something impossible: nothing more is taken
}

// targetHandler is what the control channel calls for sessions of peers.
type targetHandler struct{ e *Engine }

// errLeaving is the answer of an engine that will be gone in a moment.
var errLeaving = &peer.RejectError{Code: wire.CodeEngine, Text: "the engine is being destroyed"}

// Hello opens our endpoints for a peer that has proved that it holds our token.
func (h targetHandler) Hello(in *peer.In, hello wire.Hello) (peer.Accept, error) {
	e := h.e
	if e.closed.Load() || !e.enter() {
		return peer.Accept{}, errLeaving
	}
	defer e.leave()
	e.endOlder(in)
	next := uint64(0)
	if hello.After != 0 {
		next = e.takenOf(in.Engine(), hello.After)
	}
	t := &target{e: e, in: in, since: time.Now(), id: e.ids.Add(1), revokes: map[uint64]chan struct{}{}, asm: notify.New(notify.Limits{}),
		skip: map[uint64]bool{}, staged: staged{stop: make(chan struct{}), ended: make(chan struct{})}}
	s, err := e.core.NewSession(t.id, hello.Agent)
	if err != nil {
		return peer.Accept{}, err
	}
	t.sess = s
	var offers []wire.EndpointOffer
	var last error
	open := 0
	for i, o := range hello.Offers {
		offer := wire.EndpointOffer{Rail: o.Rail, Own: o.Own}
		if l, err := t.open(i, o); err == nil {
			offer.Addr, offer.ID = l.ep.Addr(), l.id
			open++
		} else {
			last = err
			e.log.Warn("no endpoint for a peer on a rail", "peer", hello.Agent, "number", o.Rail, "err", advise(err))
		}
		offers = append(offers, offer)
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
	}
	e.mu.Unlock()
	if late {
		t.drop()
		return peer.Accept{}, errLeaving
	}
	e.after(e.opt.ConnectTimeout, t.proofLate)
	return peer.Accept{Offers: offers, NextSeq: next}, nil
}

// open makes the target's end of a link.
func (t *target) open(num int, o wire.EndpointOffer) (*link, error) {
	if int(o.Rail) >= len(t.e.rails) {
		return nil, fmt.Errorf("we have no rail %d", o.Rail)
	}
	l, err := t.e.openLink(num, int(o.Rail), int(o.Own))
	if err != nil {
		return nil, err
	}
	l.target = t
	t.links = append(t.links, l)
	return l, t.e.connect(l, t.sess, o, t.from(), fastpath.Target, false)
}

// endOlder closes what an engine has left open of earlier sessions: a peer that has given us up, while we were stopped,
// say, must find its old endpoint closed before it gets a new one. Where peers share an endpoint closing is no fence, and the peer's
// operations still under way would fail without our knowing its address: it says goodbye when they have ended.
func (e *Engine) endOlder(in *peer.In) {
	e.mu.RLock()
	var old []*target
	for other, t := range e.targets {
		if other.Engine() == in.Engine() && other.Session() < in.Session() {
			old = append(old, t)
		}
	}
	e.mu.RUnlock()
	for _, t := range old {
		end := func() {
			t.close()
			t.in.Close("replaced by a newer session")
		}
		if t.shared() {
			e.after(goodbyeWait+time.Second, end)
		} else {
			end()
		}
	}
}

// shared says that an endpoint of the session serves other peers as well.
func (t *target) shared() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.links, (*link).shared)
}

func (t *target) path() string { return strings.Join(names(t.links), ",") }

// drop ends the session's access to our memory and its links.
func (t *target) drop() {
	t.e.drop(t.links, t.sess, -3, nil)
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
	entries := make([]wire.KeyEntry, len(ranges))
	h.e.localMu.Lock()
	defer h.e.localMu.Unlock()
	for i, rng := range ranges {
		r := h.e.local[rng]
		if r == nil || t == nil || t.closing.Load() || !r.registered() || r.stale {
			continue
		}
		entries[i] = wire.KeyEntry{Known: true, Region: r.id, Gen: uint32(r.id >> 32), Rails: r.railKeys()}
		r.holders[t] = struct{}{}
	}
	return entries
}

// revoke tells the peer that regions go away; the channel closes with its answer.
func (t *target) revoke(regions []uint64) <-chan struct{} {
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

// awaitRevoked waits for the answer until the deadline; a peer that does not answer loses its endpoint.
func (t *target) awaitRevoked(done <-chan struct{}, deadline time.Time) {
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
	t.e.log.Warn("peer did not give a deregistered region back in time: its endpoint is closed", "peer", t.in.Agent(),
		"cancel_timeout", t.e.opt.CancelTimeout)
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
		h.e.localMu.Lock()
		for _, r := range h.e.local {
			delete(r.holders, t)
		}
		h.e.localMu.Unlock()
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
	t.close()
}

// close ends the session on our side. Safe to call again.
func (t *target) close() {
	e := t.e
	t.closing.Store(true) // before the sweep over holders: no key is given out any more
	e.localMu.Lock()
	for _, r := range e.local {
		delete(r.holders, t)
	}
	e.localMu.Unlock()
	if !t.end() {
		t.staged.await(e.opt.CancelTimeout)
		return
	}
	t.staged.close(e.opt.CancelTimeout)
	e.mu.Lock()
	delete(e.targets, t.in) // last: whoever closes the engine finds us until we are done
	e.mu.Unlock()
}

// end is close but for copies and rings; false: it has ended before.
func (t *target) end() bool {
	e := t.e
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return false
	}
	t.gone = true
	for id, done := range t.revokes {
		delete(t.revokes, id)
		close(done)
	}
	for _, l := range t.links {
		e.quiesce(l)
	}
	p, err := t.proof() // what has arrived still goes to the application
	if err != nil {
		e.log.Warn("notifications of a peer that is gone were dropped", "peer", t.in.Agent(), "err", err)
	}
	e.mu.Lock()
	delete(e.byID, t.id)
	e.mu.Unlock()
	e.past.add(t.view(), "closed")
	t.asmMu.Lock() // no delivery to a session that is being freed
	if err != nil {
		p.Next = t.nextLocked()
	}
	e.noteTaken(t.in, p.Next)
	t.drop()
	t.asmMu.Unlock()
	return true
}
