package target

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"gorail/backend/core"
	"gorail/backend/failover"
	"gorail/backend/lifetime"
	"gorail/backend/link"
	"gorail/backend/peer"
	"gorail/backend/rlimit"
	"gorail/backend/wire"
)

// Fence ends the peer's access through one endpoint and opens another. NextSeq in the answer is exact: the peer replays
// everything that the answer does not prove.
func (s *Sessions) Fence(in *peer.In, f wire.Fence) (wire.Fenced, error) {
	answer := wire.Fenced{ID: f.ID, Rail: f.Rail, Epoch: f.Epoch}
	t := s.Of(in)
	if t == nil {
		return answer, errors.New("unknown session")
	}
	endTurn, ok := s.fencing.Take(in.Done(), t.pace)
	if !ok {
		return answer, lifetime.ErrClosing
	}
	defer endTurn()
	if !s.Life.Enter() {
		return answer, lifetime.ErrClosing
	}
	defer s.Life.Leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone || t.frozen {
		return answer, errors.New("the session has ended")
	}
	for _, l := range t.links {
		if l.Num != int(f.Rail) {
			continue
		}
		if !l.Up && !l.Shared() {
			addr, err := t.start(l, f)
			if err == nil {
				answer.Addr = addr
				l.Log(s.Log, slog.LevelInfo, "rail in use for a peer", "peer", in.Agent(), "rail", l.Rail.Name(), "link", l.Num)
			} else if !l.Rail.Waits() {
				s.warnOf(in, "no endpoint for a peer on a rail", "rail", l.Rail.Name(), "err", rlimit.Advise(err))
			}
			return answer, nil
		}
		if !l.Up {
			continue
		}
		if err := refuses(l, f); err != nil {
			return answer, err
		}
		l.Fenced()
		_ = s.Links.Quiesce(l) // Quiesce logs the error
		proof, err := t.proof()
		if err != nil {
			return answer, err
		}
		answer.NextSeq, answer.Have = proof.Next, proof.Have
		err = l.Renew()
		if l.Epoch = f.Epoch; err == nil && len(f.Addr) > 0 {
			c := t.channel()
			if err = s.Links.Reach(l.EP, f.Addr, c.Remote, c.Security(l)); err == nil {
				l.NoteEnds()
				err = l.Rebind(core.Proof{}, false)
			}
			answer.Addr = l.EP.Addr()
		}
		if err != nil {
			answer.Addr = nil // the initiator decides, because it may have other rails
			s.warnOf(in, "no endpoint for a peer on a rail", "rail", l.Rail.Name(), "err", rlimit.Advise(err))
			return answer, nil
		}
		l.Log(s.Log, slog.LevelInfo, "endpoint renewed for a peer", "peer", in.Agent(), "rail", l.Rail.Name(), "next_seq", proof.Next)
		return answer, nil
	}
	return answer, nil // the link was never up on this side
}

// refuses returns why no initiator that keeps to the protocol sends this fence of a link that is up. The first fence of a
// link that was up on this side alone has the link's own epoch.
func refuses(l *link.Link, f wire.Fence) error {
	switch {
	case l.Shared(): // Quiesce does not close it, so Renew would leave it open
		return errors.New("an endpoint that serves all peers cannot be fenced")
	case f.Epoch < l.Epoch:
		return fmt.Errorf("FENCE has epoch %d, link has epoch %d", f.Epoch, l.Epoch)
	}
	return nil
}

// failed requests a fence from the initiator, unless the fence has come already.
func (t *Session) failed(l *link.Link, epoch uint64) {
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
func (t *Session) drain(l *link.Link) {
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
			t.s.warnOf(t.in, "cannot restart a link on a shared endpoint", "rail", l.Rail.Name(), "err", rlimit.Advise(err))
		}
	}
}

// start opens our end of a link that was never up. The initiator's endpoint is open already. Under t.mu.
func (t *Session) start(l *link.Link, f wire.Fence) ([]byte, error) {
	_ = t.s.Links.Quiesce(l) // Quiesce logs the error
	if len(f.Addr) == 0 {
		return nil, errors.New("the peer has no endpoint for this link")
	}
	ep, err := l.Rail.OpenEndpoint()
	if err != nil {
		return nil, err
	}
	l.EP, l.Epoch = ep, f.Epoch
	if err := t.s.Links.Connect(l, t.sess, f.Addr, t.channel(), false); err != nil {
		return nil, err
	}
	l.Enter(failover.Working, time.Now())
	return ep.Addr(), nil
}
