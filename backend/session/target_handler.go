package session

import (
	"errors"
	"time"

	"gorail/backend/core"
	"gorail/backend/host"
	"gorail/backend/limits"
	"gorail/backend/peer"
	"gorail/backend/staging"
	"gorail/backend/wire"
)

// Hello opens our endpoints for a peer that has proved that it holds our token. Hello and the methods below implement
// peer.TargetHandler.
func (s *Targets) Hello(in *peer.In, hello wire.Hello) (peer.Accept, error) {
	if s.Life.Ending() || !s.Life.Enter() {
		return peer.Accept{}, errLeaving
	}
	defer s.Life.Leave()
	if err := s.mayUse(in); err != nil {
		return peer.Accept{}, err
	}
	defer s.hellos.Lock(in.Engine())()
	if err := s.endOlder(in); err != nil { // may wait for copies and for endpoints to close
		return peer.Accept{}, err
	}
	endTurn, ok := s.opening.Take(in.Done(), nil)
	if !ok {
		return peer.Accept{}, errLeaving
	}
	defer endTurn()
	if in.HungUp() { // Done serves only sessions that have begun
		return peer.Accept{}, errHungUp
	}
	t := &Target{s: s, in: in, id: s.Life.NextID(), log: logState{since: time.Now(), opened: s.openings()},
		pace: limits.NewPace(500*time.Millisecond, 4), asked: newAsked(), connects: s.newShare()}
	t.holdsKeys()
	t.order.begin(s.progressAfter(in.Engine(), hello.After), in.Session())
	t.staged = staging.NewServer(s.Staging, in, t.reaches)
	if err := t.makeRoom(hello.Offers); err != nil {
		return peer.Accept{}, err
	}
	sess, err := s.Core.NewSession(t.id, hello.Agent)
	if err != nil {
		t.leaveRoom()
		return peer.Accept{}, err
	}
	t.sess = sess
	accept := peer.Accept{NextSeq: t.order.asm.Next(), Have: distances(t.order.asm)}
	sess.Continue(accept.NextSeq, len(accept.Have) > 0)
	if accept.Offers, err = t.openAll(hello.Offers); err != nil { //limit:endpoints
		t.drop()
		return peer.Accept{}, err
	}
	if !s.enter(t) {
		t.drop()
		return peer.Accept{}, errLeaving
	}
	t.order.mu.Lock()
	t.holdPending(int64(t.order.asm.Counts().Bytes)) // bytes that the session before left behind a gap
	t.order.mu.Unlock()
	t.after(s.Options.ConnectTimeout, (*Target).proofLate)
	return accept, nil
}

// openAll opens our end of all links. It returns an error when none opens.
func (t *Target) openAll(offers []wire.EndpointOffer) (answers []wire.EndpointOffer, err error) {
	open, ofHost := 0, len(offers) > 0
	for i, o := range offers {
		answer := wire.EndpointOffer{Rail: o.Rail, Own: o.Own}
		l, failed := t.open(i, o)
		if l != nil {
			answer.ID = l.ID
		}
		ofHost = ofHost && l != nil && l.Rail.Device().Host
		switch {
		case failed == nil:
			answer.Addr = l.EP.Addr()
			open++
		case l != nil && l.Rail.Waits() || len(o.Addr) == 0: // the side without the endpoint logs the reason
			err = failed
		default:
			err = failed
			t.s.warnOf(t.in, "no endpoint for a peer on a rail", "number", o.Rail, "err", host.Advise(failed))
		}
		answers = append(answers, answer)
	}
	if open > 0 {
		err = nil
	} else if err == nil {
		err = errNoOffers
	} else if ofHost && !host.Exhausted(err) { // the initiator may have other rails
		err = &peer.RejectError{Code: wire.CodeRails, Text: err.Error()}
	}
	return answers, err
}

// errNoOffers refuses a Hello without a link.
var errNoOffers = errors.New("the Hello offers no link")

// enter adds an open session. false: the engine has begun to close.
func (s *Targets) enter(t *Target) bool {
	shared, entered := s.enterLocked(t)
	if shared {
		s.nameShared(t.in)
	}
	return entered
}

func (s *Targets) enterLocked(t *Target) (nameShared, entered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Life.Ending() {
		return false, false
	}
	s.all[t.in], s.byID[t.id] = t, t
	s.byEngine[t.in.Engine()] = append(s.byEngine[t.in.Engine()], t) //limit:older_sessions
	delete(s.progress, t.in.Engine())                                // t has it now, or no session continues it
	return s.names.add(t.in), true
}

// KeysWanted returns the keys of registered ranges, and notes that the peer holds them.
func (s *Targets) KeysWanted(in *peer.In, ranges []wire.Claim) (entries []wire.KeyEntry, stays bool) {
	t := s.Of(in)
	if t == nil {
		return make([]wire.KeyEntry, len(ranges)), false
	}
	endTurn, ok := s.asking.Take(in.Done(), t.pace)
	if !ok {
		return make([]wire.KeyEntry, len(ranges)), false
	}
	defer endTurn()
	entries = s.Regions.KeysFor(ranges, &t.holder)
	return entries, s.Regions.Stays()
}

// Revoked handles the peer's answer: the peer has no operation in flight on the region.
func (s *Targets) Revoked(in *peer.In, id uint64, all bool) {
	if !s.Life.Enter() {
		return
	}
	defer s.Life.Leave()
	t := s.Of(in)
	if t == nil {
		return
	}
	// The peer has given up every key. Deregistrations need not wait for it until it requests keys again.
	if all {
		s.Regions.DropHolder(&t.holder)
	}
	t.holder.Answered(id)
}

// Stage handles an initiator's requests for staged transfers.
func (s *Targets) Stage(in *peer.In, f wire.Frame) error {
	if !s.Life.Enter() {
		return core.ErrClosing
	}
	defer s.Life.Leave()
	t := s.Of(in)
	if t == nil {
		return nil // the session is being closed
	}
	if req, ok := f.(*wire.HandlesReq); ok {
		return t.lend(req)
	}
	if _, ring := f.(*wire.RingReq); ring { // looks through the registrations
		endTurn, ok := s.asking.Take(in.Done(), t.pace)
		if !ok {
			return nil
		}
		defer endTurn()
	}
	return t.staged.Stage(f)
}

// Gone ends the session: the control channel to the peer has ended, and with it the peer's access.
func (s *Targets) Gone(in *peer.In, err error) {
	if !s.Life.Enter() {
		return
	}
	defer s.Life.Leave()
	t := s.Of(in)
	if t == nil {
		return
	}
	s.Log.Info("peer's session ended", "peer", in.Agent(), "reason", err)
	if time.Since(t.log.since) > s.Options.ConnectTimeout/2 {
		t.proofLate()
	}
	t.leave(!errors.Is(err, peer.ErrPeerClosed) && !errors.Is(err, peer.ErrDead) && !errors.Is(err, peer.ErrRecalled))
}
