package initiator

import (
	"gorail/backend/core"
	"gorail/backend/link"
)

// Inside is the state of a session that Inspect shows. Its reader must not change it.
type Inside struct {
	Links     []*link.Link
	NotifLink *link.Link // carries the notifications without a transfer
	Core      core.Session
	Has       bool // Core exists
	Regions   int  // loaded ranges of the peer, and their slices
	Keyed     int  // regions of the peer with keys
	Wanted    int  // regions whose keys are still to be requested
	// regions of each key request that waits for its answer
	Requests []int
	Failed   int // failed dials since the last session that was ready
	Revoking int // revocations that wait
}

// Inspect calls f under the session's lock, so nothing changes meanwhile.
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

// Keep queues a notification for the next connection, as the loss of a connection does. It ignores the limit
// notif_queue.
func (r *Session) Keep(msg []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notifs = append(r.notifs, core.Taken{Body: msg})
	r.notifLen += notifCost(msg)
}

// GiveUp ends the connection, as a failure of this side does.
func (r *Session) GiveUp(err error) {
	r.mu.RLock()
	c := r.conn
	r.mu.RUnlock()
	c.GiveUp(err)
}

// Forget removes a name without a message to the peer. Tests simulate another process in our place with it.
func (s *Sessions) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byName, name)
}

// Leaving is the number of sessions that the application has disconnected and that have not ended.
func (s *Sessions) Leaving() int { return len(s.leaving()) }

// Path names the rails in use.
func (r *Session) Path() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.inUse()
}
