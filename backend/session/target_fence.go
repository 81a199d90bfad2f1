package session

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/host"
	"gorail/backend/limits"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/wire"
)

// Fence ends the peer's access through one endpoint, and opens another if the peer sends the address of its own. NextSeq in the answer is
// exact: the peer replays everything that the answer does not prove. Implements peer.TargetHandler.
func (s *Targets) Fence(in *peer.In, f wire.Fence) error {
	t := s.Of(in)
	if t == nil {
		return s.ended()
	}
	endTurn, ok := s.fencing.Take(in.Done(), t.pace)
	if !ok {
		return core.ErrClosing
	}
	defer endTurn()
	if !s.Life.Enter() {
		return core.ErrClosing
	}
	defer s.Life.Leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone || t.frozen {
		return s.ended()
	}
	answer := wire.Fenced{ID: f.ID, Rail: f.Rail, Epoch: f.Epoch}
	if len(f.New) > 0 && int(f.Rail) < core.MaxLinks && !slices.ContainsFunc(t.links, func(l *Link) bool { return l.Num == int(f.Rail) }) {
		if err := t.begin(int(f.Rail), f.New[0]); err != nil {
			s.warnOf(in, "no link for a peer's memory", "rail", f.New[0].Rail, "err", host.Advise(err))
			in.Fenced(answer)
			return nil
		}
	}
	i := slices.IndexFunc(t.links, func(l *Link) bool { return l.Num == int(f.Rail) && (l.Up || l.added || !l.Shared()) })
	if i < 0 { // the link was never up on this side
		in.Fenced(answer)
		return nil
	}
	l := t.links[i]
	if l.added {
		answer.Link = l.ID
	}
	if l.Up && l.Shared() && len(f.New) > 0 { // it is up on this side alone, and the peer has the same endpoint as before
		answer.Addr = l.EP.Addr()
		in.Fenced(answer)
		return nil
	}
	if err := t.endAccess(l, f, &answer); err != nil {
		return err
	}
	if len(f.Addr) == 0 {
		in.Fenced(answer)
		return nil
	}
	ep, err := l.Rail.OpenEndpoint()
	if err != nil {
		t.opened(l, answer, err)
		return nil
	}
	l.EP = ep
	sec := t.channel().Security(l)
	l.Connects.Do(s.Life, func() { t.reach(l, ep, f.Addr, sec, answer) })
	return nil
}

// ended is the error of a request for a session that is over. An engine that is being destroyed gives no reason of its own: its goodbye, which
// follows, has the right one.
func (s *Targets) ended() error {
	if s.Life.Ending() {
		return nil
	}
	return errors.New("the session has ended")
}

// endAccess ends the peer's access through a link's endpoint, and puts what that proves into the answer. Under t.mu.
func (t *Target) endAccess(l *Link, f wire.Fence, answer *wire.Fenced) error {
	if !l.Up {
		_ = t.s.Links.Quiesce(l) // Quiesce logs the error
		t.s.Links.closeUnused(l)
		l.Epoch = f.Epoch
		return nil
	}
	if err := refuses(l, f); err != nil {
		return err
	}
	if l.EP != nil {
		l.Fenced()
	}
	_ = t.s.Links.Quiesce(l) // Quiesce logs the error
	l.Epoch = f.Epoch
	proof, err := t.proof()
	answer.NextSeq, answer.Have = proof.Next, proof.Have
	return err
}

// proof returns which notifications have come. The closed endpoint delivers no more. Notifications that other endpoints
// deliver meanwhile do no harm.
func (t *Target) proof() (p core.Proof, err error) {
	err = t.inOrder(func() {
		p = core.Proof{Next: t.nextLocked(), Have: t.order.asm.Have()}
		if len(t.links) == 1 {
			t.order.asm.DropPartial()
		}
	})
	return p, err
}

// reach connects a link's new endpoint to the peer's, and answers. On RoCE the kernel may look for the neighbour for a second: t.mu is
// free, and the peer's other frames are read meanwhile.
func (t *Target) reach(l *Link, ep provider.Endpoint, addr []byte, sec provider.Security, answer wire.Fenced) {
	if !t.waitsFor(l, ep, answer) {
		return
	}
	endTurn, ok := t.turnToConnect(t.in.Done())
	if !ok {
		return
	}
	defer endTurn()
	if !t.waitsFor(l, ep, answer) {
		return
	}
	err := t.s.Links.Reach(ep, addr, sec)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.waitsForLocked(l, ep, answer) {
		return
	}
	first := !l.Up
	if err == nil && first {
		if err = t.s.Links.Attach(l, t.sess, core.Target, false); err == nil {
			l.Enter(Working, time.Now())
		}
	} else if err == nil {
		l.NoteEnds()
		err = l.Rebind(core.Proof{}, false)
	}
	if err == nil {
		answer.Addr = ep.Addr()
	}
	t.opened(l, answer, err)
	switch {
	case err != nil:
	case first:
		l.Log(t.s.Log, slog.LevelInfo, "rail in use for a peer", "peer", t.in.Agent(), "rail", l.Rail.Name(), "link", l.Num)
	default:
		l.Log(t.s.Log, slog.LevelInfo, "endpoint renewed for a peer", "peer", t.in.Agent(), "rail", l.Rail.Name(), "next_seq", answer.NextSeq)
	}
}

// waitsFor returns true if the peer still waits for the connection of this endpoint. If another FENCE has come, it answers this one, and
// returns false.
func (t *Target) waitsFor(l *Link, ep provider.Endpoint, answer wire.Fenced) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waitsForLocked(l, ep, answer)
}

// waitsForLocked implements waitsFor. Under t.mu.
func (t *Target) waitsForLocked(l *Link, ep provider.Endpoint, answer wire.Fenced) bool {
	if t.gone || t.frozen {
		return false
	}
	if l.EP != ep { // another FENCE has come
		t.in.Fenced(answer)
	}
	return l.EP == ep
}

// newShare makes a session's share of the connects.
func (s *Targets) newShare() *limits.Turns {
	return limits.NewTurns(ownConnectors, nil, func() { s.Limits.Hit(limits.Connects) })
}

// turnToConnect waits for a turn to connect an endpoint. The wait and the connect take no processor time: no pace counts them.
// The caller ends the turn with end. false: done was closed before.
func (t *Target) turnToConnect(done <-chan struct{}) (end func(), ok bool) {
	endOwn, ok := t.connects.Take(done, nil)
	if !ok {
		return nil, false
	}
	endTurn, ok := t.s.connecting.Take(done, nil)
	if !ok {
		endOwn()
		return nil, false
	}
	return func() { endTurn(); endOwn() }, true
}

// opened answers a FENCE. err is why there is no endpoint: the initiator decides, because it may have other rails. Under t.mu.
func (t *Target) opened(l *Link, answer wire.Fenced, err error) {
	if err != nil && (l.Up || !l.Rail.Waits()) {
		t.s.warnOf(t.in, "no endpoint for a peer on a rail", "rail", l.Rail.Name(), "err", host.Advise(err))
	}
	t.in.Fenced(answer)
}

// refuses returns why no initiator that keeps to the protocol sends this fence of a link that is up. The first fence of a
// link that was up on this side alone has the link's own epoch.
func refuses(l *Link, f wire.Fence) error {
	switch {
	case l.Shared(): // Quiesce does not close it, so Renew would leave it open
		return errors.New("an endpoint that serves all peers cannot be fenced")
	case f.Epoch < l.Epoch:
		return fmt.Errorf("FENCE has epoch %d, link has epoch %d", f.Epoch, l.Epoch)
	}
	return nil
}

// failed requests a fence from the initiator, unless the fence has come already.
func (t *Target) failed(l *Link, epoch uint64) {
	if !t.s.Life.Enter() {
		return
	}
	defer t.s.Life.Leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.Shared() {
		t.drain(l)
		return
	}
	if !t.gone && !t.frozen && l.Up && epoch == uint64(l.Epoch) && l.Core.Stats().State == core.LinkStopped {
		t.in.WantFence(uint8(l.Num), l.Epoch)
	}
}

// drain restarts a link of a shared endpoint after its posted operations have ended. A shared endpoint cannot be fenced.
// Under mu.
func (t *Target) drain(l *Link) {
	switch {
	case t.gone || !l.Up || l.Core.Stats().State != core.LinkStopped:
	case !l.Drained():
		t.s.Life.After(time.Millisecond, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.drain(l)
		})
	default:
		if err := l.Rebind(core.Proof{}, false); err != nil {
			t.s.warnOf(t.in, "cannot restart a link on a shared endpoint", "rail", l.Rail.Name(), "err", host.Advise(err))
		}
	}
}
