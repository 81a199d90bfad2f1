package transfer

// Memory may be registered on some rails alone, so that a session has no link over rails that no memory has needed. A transfer asks for the
// links between the rails of its memory.

import (
	"maps"
	"sync"
	"time"
)

// Sets are the rails that have all memory of a transfer, as bit masks: ours, and the peer's.
type Sets struct{ Ours, Theirs uint64 }

const (
	// mostSets bounds the sets that a peer remembers: a process with eight GPUs and a peer like it need 81.
	mostSets = 256
	// askAgain is how long a transfer without a link waits before its links are tried anew.
	askAgain = time.Second
	// AskLater is the same for one that has some links, and lacks others.
	AskLater = 5 * time.Second
)

// pairing is what a peer knows of sets of rails.
type pairing struct {
	setsMu sync.Mutex
	places []int             // rails of the peer, in the order of the core's table of keys, which counts bytes by them
	wide   bool              // links begin when transfers need them
	asked  map[Sets]*settled // those that the session was asked for
}

// settled says what became of a request for links.
type settled struct {
	at    time.Time // zero: links begin
	whole bool      // all links work
}

// isWide reports that links begin when transfers need them.
func (p *Peer) isWide() bool {
	p.setsMu.Lock()
	defer p.setsMu.Unlock()
	return p.wide
}

// Paired notes that no link between such rails begins any more: those that work are in the view. whole: that is all of them.
func (p *Peer) Paired(s Sets, whole bool) {
	p.setsMu.Lock()
	defer p.setsMu.Unlock()
	if known := p.asked[s]; known != nil {
		known.at, known.whole = time.Now(), whole
	}
}

// Unpair forgets all requests: the session that answers them is over.
func (p *Peer) Unpair() {
	p.setsMu.Lock()
	defer p.setsMu.Unlock()
	clear(p.asked)
}

// wantLinks asks the session for the links between rails, once. linked: the transfer has links. It reports whether links begin. Under mu for
// reading.
func (p *Peer) wantLinks(s Sets, linked bool) (begins bool) {
	if s.Ours == 0 || s.Theirs == 0 {
		return false
	}
	p.setsMu.Lock()
	defer p.setsMu.Unlock()
	if !p.wide {
		return false
	}
	known := p.asked[s]
	switch {
	case known != nil && known.at.IsZero():
		return true
	case known != nil && (known.whole || time.Since(known.at) < askAgain || linked && time.Since(known.at) < AskLater):
		return false
	case len(p.asked) >= mostSets:
		maps.DeleteFunc(p.asked, func(_ Sets, known *settled) bool { return !known.at.IsZero() })
	}
	if len(p.asked) >= mostSets {
		return false
	}
	if p.asked == nil {
		p.asked = map[Sets]*settled{}
	}
	p.asked[s] = &settled{}
	p.Events.Do(p.tab.Life, func() { p.session.Pair(s) })
	return true
}

// linksBegin reports that links between the rails of the transfer's memory begin. Under Peer.mu.
func (t *Transfer) linksBegin() bool {
	s, p := t.sets(), t.peer
	p.setsMu.Lock()
	defer p.setsMu.Unlock()
	known := p.asked[s]
	return known != nil && known.at.IsZero()
}

// sets are the rails that have all of the transfer's memory. Under Peer.mu for reading.
func (t *Transfer) sets() Sets {
	s := Sets{^uint64(0), ^uint64(0)}
	for _, g := range t.Locals() {
		s.Ours &= g.Rails.Load()
	}
	for _, g := range t.remotes {
		s.Theirs &= g.Rails.Load()
	}
	return s
}
