package engine

import (
	"errors"
	"time"

	"gorail/backend/core"
	"gorail/backend/peer"
	"gorail/backend/rlimit"
	"gorail/backend/wire"
)

// Fence ends the peer's access through one endpoint and opens another. What it learns in NextSeq is exact: it will
// replay everything that is not proved by it.
func (h targetHandler) Fence(in *peer.In, f wire.Fence) (wire.Fenced, error) {
	answer := wire.Fenced{ID: f.ID, Rail: f.Rail, Epoch: f.Epoch}
	t := h.e.target(in)
	if t == nil {
		return answer, errors.New("unknown session")
	}
	endTurn, ok := h.e.fencing.Take(in.Done(), t.pace)
	if !ok {
		return answer, errClosing
	}
	defer endTurn()
	if !h.e.enter() {
		return answer, errClosing
	}
	defer h.e.leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone || t.frozen {
		return answer, errors.New("the session has ended")
	}
	for _, l := range t.links {
		if l.num != int(f.Rail) {
			continue
		}
		if !l.up && !l.shared() {
			addr, err := t.start(l, f)
			if err == nil {
				answer.Addr = addr
				h.e.log.Info("rail in use for a peer", "peer", in.Agent(), "rail", l.rail.Name(), "link", l.num)
			} else if !l.rail.Waits() {
				h.e.log.Warn("no endpoint for a peer on a rail", "peer", in.Agent(), "rail", l.rail.Name(), "err", rlimit.Advise(err))
			}
			return answer, nil
		}
		if !l.up {
			continue
		}
		l.fenced()
		h.e.quiesce(l)
		proof, err := t.proof()
		if err != nil {
			return answer, err
		}
		answer.NextSeq, answer.Have = proof.Next, proof.Have
		err = h.e.renew(l)
		if l.epoch = f.Epoch; err == nil && len(f.Addr) > 0 {
			if err = h.e.reachFor(l.ep, f.Addr, t.from()); err == nil {
				l.noteEnds()
				err = l.rebind(core.Proof{}, false)
			}
			answer.Addr = l.ep.Addr()
		}
		if err != nil {
			answer.Addr = nil // the initiator decides: it may have other rails
			h.e.warnOf(in, "no endpoint for a peer on a rail", "rail", l.rail.Name(), "err", rlimit.Advise(err))
			return answer, nil
		}
		h.e.log.Info("endpoint renewed for a peer", "peer", in.Agent(), "rail", l.rail.Name(), "next_seq", proof.Next)
		return answer, nil
	}
	return answer, nil // the link never came about here
}

// failed asks the initiator for a fence, unless it has come already.
func (t *target) failed(l *link, epoch uint64) {
	if !t.e.enter() {
		return
	}
	defer t.e.leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.shared() {
		t.drain(l)
		return
	}
	if !t.gone && !t.frozen && l.up && epoch == uint64(l.epoch) && l.l.Stats().State == core.LinkStopped {
		t.in.WantFence(uint8(l.num), l.epoch)
	}
}

// drain uses a link of a shared endpoint again when what it has posted has ended: there is nothing to fence. Under mu.
func (t *target) drain(l *link) {
	switch {
	case t.gone || !l.up || l.l.Stats().State != core.LinkStopped:
	case !l.drained():
		t.e.after(time.Millisecond, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.drain(l)
		})
	default:
		if err := l.rebind(core.Proof{}, false); err != nil {
			t.e.log.Warn("a rail is lost to a peer", "peer", t.in.Agent(), "rail", l.rail.Name(), "err", rlimit.Advise(err))
		}
	}
}
