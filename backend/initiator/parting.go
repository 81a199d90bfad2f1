package initiator

import (
	"time"

	"gorail/backend/failover"
	"gorail/backend/link"
	"gorail/backend/peer"
)

// newParting begins the end of the connection. nil: the peer is not asked for FENCEs. Under Session.mu.
func (r *Session) newParting() *parting {
	out := r.conn.out
	if out == nil || out.State() != peer.Ready || r.s.Life.Closed() {
		return nil
	}
	return &parting{s: r.s, out: out, until: time.Now().Add(r.s.Options.PeerTimeout), left: map[uint64]struct{}{}}
}

// Ask sends a FENCE for each link that needs one. The links are quiesced, and no new endpoint replaces theirs.
func (p *parting) Ask(links []*link.Link) {
	for _, l := range links {
		if l.Shared() || !l.Up || l.Answer != nil || !l.Core.Unproved() {
			continue
		}
		if l.Phase == failover.Fencing { // a FENCE was sent already
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

// Waits returns true while an answer is due and can still come.
func (p *parting) Waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.left) > 0 && p.out.State() == peer.Ready && time.Now().Before(p.until) && !p.s.Life.Closed()
}
