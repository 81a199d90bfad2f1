package initiator

import (
	"gorail/backend/core"
	"gorail/backend/link"
)

// Inside is what a session is made of while Inspect shows it. Nothing of it is to be changed.
type Inside struct {
	Links     []*link.Link
	NotifLink *link.Link // notifications go out here
	Core      core.Session
	Has       bool // Core is there
	Regions   int  // ranges of the peer's that are loaded, and their slices
	Keyed     int  // regions of the peer's with keys
	Wanted    int  // those whose keys are to be asked for,
	Requests  []int
	Failed    int // dials in vain since the last session that was ready
	Revoking  int // revocations that wait
}

// Inspect calls f with the session's lock held: nothing changes meanwhile.
func (r *Session) Inspect(f func(in Inside)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := Inside{Links: r.links, NotifLink: r.notifLink, Core: r.sess, Has: r.hasSess, Regions: len(r.regions), Keyed: len(r.byTarget), Wanted: len(r.wanted), Failed: r.dials.n,
		Revoking: len(r.revokes)}
	for _, list := range r.requests {
		in.Requests = append(in.Requests, len(list))
	}
	f(in)
}

// Keep queues a notification for the next connection, whatever waits already, as the loss of one does.
func (r *Session) Keep(msg []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notifs = append(r.notifs, core.Taken{Body: msg})
	r.notifLen += notifCost(msg)
}

// GiveUp ends the connection, as a failure of this side's does.
func (r *Session) GiveUp(err error) {
	r.mu.RLock()
	c := r.conn
	r.mu.RUnlock()
	c.GiveUp(err)
}

// Forget lets a name lead nowhere without a word to anybody, as if by another process in our place.
func (s *Sessions) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byName, name)
}

// Leaving is how many sessions are being left.
func (s *Sessions) Leaving() int { return len(s.leaving()) }
