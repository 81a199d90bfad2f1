package session

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/peer"
	"gorail/backend/transfer"
)

// removeName removes a peer's name. The caller disconnects the peer. Until the disconnection ends, the session stays in
// disconnecting, so that no other session with its engine begins. nil: no peer has that name.
func (s *Initiators) removeName(name, why string) (*Initiator, *disconnection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removeNameLocked(name, why)
}

func (s *Initiators) removeNameLocked(name, why string) (*Initiator, *disconnection) {
	r := s.byName[name]
	if r == nil {
		return nil, nil
	}
	d := &disconnection{why: errors.New(why), ended: make(chan struct{}), drained: make(chan struct{})}
	delete(s.byName, name)
	s.disconnecting[r] = d
	return r, d
}

// disconnected ends a disconnection.
func (s *Initiators) disconnected(r *Initiator, d *disconnection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disconnecting[r] == d {
		delete(s.disconnecting, r)
		close(d.ended)
	}
}

// disconnect ends a session without waiting for the peer. Transfers in flight end in an error. READs write nothing more when
// disconnect returns, because the agent then reports their end by itself. The session ends in the background, because closing
// all endpoints may take long when the peer is stopped. The session stays while the peer may lack accepted notifications, at
// most for peer_timeout.
func (r *Initiator) disconnect(d *disconnection) {
	r.mu.Lock()
	if r.unsent() {
		r.reconnect()
	}
	d.final = r.state != connecting && r.state != ready && r.state != suspended || !r.lacksNotifs()
	r.change(func() { r.leaving = d }) // the next post reads the new state
	r.retireLoaded()
	r.peer.EndWaiting(errcode.Disconnected)
	active := r.peer.Unfinished()
	r.mu.Unlock()
	for _, t := range active {
		t.Abort(errcode.Disconnected.Errorf("%w", d.why))
	}
	r.peer.EndReads(active)
	r.s.Life.Go(func() {
		if !d.final {
			r.deliver(d, active)
		}
		r.close(d.why, d)
		r.s.disconnected(r, d)
	})
}

// reclaim returns the disconnecting session with the same engine and name, so that the application can use it again. A
// repeated disconnect and load then needs no new connection. nil: there is no such session. With the name's lock held.
func (s *Initiators) reclaim(name string, raw []byte) *Initiator {
	s.mu.RLock()
	var r *Initiator
	for old := range s.disconnecting {
		if old.name == name && bytes.Equal(old.raw, raw) && (r == nil || old.number > r.number) {
			r = old
		}
	}
	s.mu.RUnlock()
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.leaving
	if d == nil || d.final {
		return nil
	}
	r.reconnect()
	if r.state != connecting && r.state != ready && (r.state != suspended || r.homeless() == nil) {
		return nil
	}
	r.change(func() { r.leaving = nil })
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.disconnecting, r)
	s.byName[name] = r
	close(d.ended)
	return r
}

// lacksNotifs returns true if the peer may lack accepted notifications. Under mu.
func (r *Initiator) lacksNotifs() bool {
	return r.unsent() || r.undelivered() > 0 || r.hasSess && r.sess.Sent() > 0
}

// undelivered is the number of bytes of accepted notifications that are certainly not sent. Under mu.
func (r *Initiator) undelivered() (n uint64) {
	n = r.notifLen
	if r.hasSess {
		n += r.sess.Queued()
	}
	return n
}

// deliver waits until the transfers have drained and the peer has all notifications. It also returns when the session
// has ended, when the application has loaded the peer again, or after peer_timeout.
func (r *Initiator) deliver(d *disconnection, active []*transfer.Transfer) {
	for deadline := time.Now().Add(r.s.Options.PeerTimeout); time.Now().Before(deadline); {
		r.mu.Lock()
		back := r.leaving != d
		over := r.state == lost || r.state == closed || r.state == suspended && !r.unsent()
		left := r.state == lost && errors.Is(r.err, peer.ErrPeerClosed)
		if !back && r.state == ready && !d.drainSent && r.sess.Queued() == 0 && !slices.ContainsFunc(active, (*transfer.Transfer).Busy) {
			d.drainSent, d.next = true, r.sess.Sent() // every posted notification has a number: Sent is the number after the last
			r.conn.out.Drain(d.next)
		}
		r.mu.Unlock()
		if back {
			return
		}
		if over && left { // nobody is there who could miss them
			r.s.Log.Debug("peer was destroyed before it confirmed the last notifications", "peer", r.name)
			return
		}
		if over {
			r.s.Log.Warn("session ended before the peer confirmed the last notifications, which may be lost", "peer", r.name, errcode.Key, errcode.NotifsLost)
			return
		}
		wait := time.NewTimer(deliverPoll)
		select {
		case <-d.drained:
			return
		case <-d.ended:
		case <-r.s.stopDelivery:
			wait.Stop()
			if d.confirmed() {
				return
			}
			r.s.Log.Warn("engine closed before the peer confirmed the last notifications, which may be lost: is the peer stopped or starved?", "peer", r.name, "waited", transfer.Farewell, errcode.Key, errcode.NotifsLost)
			return
		case <-wait.C:
		}
		wait.Stop()
	}
	r.s.Log.Warn("peer did not take the last notifications within peer_timeout", "peer", r.name, "peer_timeout", r.s.Options.PeerTimeout, errcode.Key, errcode.NotifsLost)
}

// confirmed reports that the peer has all notifications.
func (d *disconnection) confirmed() bool {
	select {
	case <-d.drained:
		return true
	default:
		return false
	}
}

// deliverPoll is the polling interval of deliver.
const deliverPoll = 500 * time.Microsecond

// Drained handles the target's answer: the target has all notifications below next.
func (c *conn) Drained(next uint64) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if d := c.r.leaving; d != nil && c.current() && d.drainSent && d.next == next {
		d.drainSent, d.next = true, ^uint64(0) // once: no later answer matches
		close(d.drained)
	}
}

// newParting begins the end of the connection. nil: the peer is not asked for FENCEs. Under Initiator.mu.
func (r *Initiator) newParting() *parting {
	out := r.conn.out
	if out == nil || out.State() != peer.Ready || r.s.Life.Ending() {
		return nil
	}
	return &parting{s: r.s, out: out, until: time.Now().Add(r.s.Options.PeerTimeout), left: map[uint64]struct{}{}}
}

// ask sends a FENCE for each link that needs one. The links are quiesced, and no new endpoint replaces theirs.
func (p *parting) ask(links []*Link) {
	for _, l := range links {
		if l.Shared() || !l.Up || l.Answer != nil || !l.Core.Unproved() {
			continue
		}
		if l.Phase == Fencing { // a FENCE was sent already
			if until := l.Since.Add(p.s.Options.PeerTimeout); until.Before(p.until) {
				p.until = until
			}
		}
		id := p.s.Life.NextID()
		p.mu.Lock()
		p.left[id] = struct{}{}
		p.mu.Unlock()
		p.out.Fence(id, uint8(l.Num), l.Epoch+1, nil)
	}
}

// answered handles the answer to a FENCE. p may be nil.
func (p *parting) answered(id uint64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.left, id)
}

// waits returns true while an answer is due and can still come.
func (p *parting) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.left) > 0 && p.out.State() == peer.Ready && time.Now().Before(p.until) && !p.s.Life.Ending()
}
