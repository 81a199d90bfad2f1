package engine

import (
	"errors"
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
	closing atomic.Bool // the same, for readers without mu
	sess    fastpath.Session
	links   []*link
	usage   usage // of Engine.room
	pace    pace  // of what it asks for
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
	refused  bool         // it sent something impossible: nothing more is taken
}

// targetHandler is what the control channel calls for sessions of peers.
type targetHandler struct{ e *Engine }

// errLeaving is the answer of an engine that will be gone in a moment.
var errLeaving = &peer.RejectError{Code: wire.CodeEngine, Text: "the engine is being destroyed"}

// Hello opens our endpoints for a peer that has proved that it holds our token.
func (h targetHandler) Hello(in *peer.In, hello wire.Hello) (peer.Accept, error) {
	e := h.e
	endTurn, ok := e.opening.take(in.Done(), nil)
	if !ok {
		return peer.Accept{}, errLeaving
	}
	defer endTurn()
	if e.closed.Load() || !e.enter() {
		return peer.Accept{}, errLeaving
	}
	defer e.leave()
	if err := e.endOlder(in); err != nil {
		return peer.Accept{}, err
	}
	next := uint64(0)
	if hello.After != 0 {
		next = e.takenOf(in.Engine(), hello.After)
	}
	t := &target{e: e, in: in, id: e.ids.Add(1), revokes: map[uint64]chan struct{}{}, asm: notify.New(notify.Limits{}),
		skip: map[uint64]bool{}, pace: pace{burst: 500 * time.Millisecond, parts: 4}, staged: staged{stop: make(chan struct{}), ended: make(chan struct{})}}
	if err := t.makeRoom(hello.Offers); err != nil {
		return peer.Accept{}, err
	}
	s, err := e.core.NewSession(t.id, hello.Agent)
	if err != nil {
		t.leaveRoom()
		return peer.Accept{}, err
	}
	t.sess = s
	var offers []wire.EndpointOffer
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
		case l != nil && l.rail.waits() || len(o.Addr) == 0: // in the log of the side that lacks it
			last = err
		default:
			last = err
			e.warnOf(in, "no endpoint for a peer on a rail", "number", o.Rail, "err", advise(err))
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
		e.byEngine[in.Engine()] = append(e.byEngine[in.Engine()], t)
	}
	e.mu.Unlock()
	if late {
		t.drop()
		return peer.Accept{}, errLeaving
	}
	e.log.Info("peer connected", "peer", hello.Agent, "memory", "DRAM", "rails", t.path(), "links", open, "session", "target")
	return peer.Accept{Offers: offers, NextSeq: next}, nil
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
		err = t.e.connect(l, t.sess, o, fastpath.Target, false)
	}
	if err != nil {
		_ = t.e.quiesce(l) // it is in the log
	}
	return l, err
}

// endOlder closes what an engine has left open of earlier sessions: a peer that has given us up, while we were stopped,
// say, must find its old endpoint closed before it gets a new one. Where peers share an endpoint closing is no fence, and the peer's
// operations still under way would fail without our knowing its address: it says goodbye when they have ended.
// A session that is older itself comes late: its initiator has given it up. One engine has few sessions at a time.
func (e *Engine) endOlder(in *peer.In) error {
	e.mu.RLock()
	old := slices.Clone(e.byEngine[in.Engine()])
	e.mu.RUnlock()
	switch {
	case slices.ContainsFunc(old, func(t *target) bool { return t.in.Session() > in.Session() }):
		return &peer.RejectError{Code: wire.CodeSession, Text: "there is a newer session of this engine"}
	case len(old) >= mostOlder:
		return &peer.RejectError{Code: wire.CodeBusy, Text: fmt.Sprintf("%d sessions of this engine have not ended yet", len(old))}
	}
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
	return nil
}

// shared says that an endpoint of the session serves other peers as well.
func (t *target) shared() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.links, (*link).shared)
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
	entries := make([]wire.KeyEntry, len(ranges))
	if t == nil || !t.pace.wait(in.Done()) {
		return entries
	}
	start := time.Now()
	defer func() { t.pace.spend(time.Since(start)) }()
	h.e.localMu.Lock()
	defer h.e.localMu.Unlock()
	for i, rng := range ranges {
		r := h.e.local[rng]
		if r == nil || t.closing.Load() || !r.registered() || r.stale {
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
	id := t.in.Engine()
	if e.byEngine[id] = slices.DeleteFunc(e.byEngine[id], func(o *target) bool { return o == t }); len(e.byEngine[id]) == 0 {
		delete(e.byEngine, id)
	}
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
	e.ending <- struct{}{}
	for _, l := range t.links {
		e.quiesce(l)
	}
	<-e.ending
	p, err := t.proof() // what has arrived still goes to the application
	if err != nil {
		e.warnOf(t.in, "notifications of a peer that is gone were dropped", "err", err)
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
	e.freeing <- struct{}{}
	t.drop()
	<-e.freeing
	t.holdPending(0)
	t.asmMu.Unlock()
	return true
}
