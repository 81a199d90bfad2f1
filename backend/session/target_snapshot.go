package session

import (
	"time"

	"golang.org/x/time/rate"

	"gorail/backend/core"
	"gorail/backend/limits"
	"gorail/backend/peer"
	"gorail/backend/wire"
)

// Bounds of the snapshots that peers ask for. An initiator asks after a timeout of a transfer, once a second at most.
const (
	snapshotsAtOnce  = 4  // of a session, then one a second
	snapshotsOfPeers = 64 // a second, of all sessions. One takes some microseconds for each link
)

// snapshotLock is how long a snapshot waits for the session's lock. Who fences a link may hold it for a second.
const snapshotLock = 100 * time.Millisecond

// newSnapshots limits the snapshots of all sessions.
func newSnapshots() *rate.Limiter { return rate.NewLimiter(snapshotsOfPeers, snapshotsOfPeers) }

func newAsked() asked {
	return asked{rate.NewLimiter(1, snapshotsAtOnce), make(chan struct{}, 1)}
}

// Snapshot answers the initiator of a transfer that has timed out. It takes no lock of the session: another goroutine makes
// the snapshot. Implements peer.TargetHandler.
func (s *Targets) Snapshot(in *peer.In, id uint64) {
	if !s.Life.Enter() {
		return
	}
	defer s.Life.Leave()
	f := &wire.Snapshot{ID: id, State: wire.SnapshotNone}
	if t := s.Of(in); t != nil {
		heard := time.Since(in.LastHeard())
		if t.mayAsk(time.Now()) {
			go t.snapshot(f, heard) //limit:snapshots
			return
		}
		f.State = wire.SnapshotRefused
		s.Limits.Hit(limits.Snapshots)
	}
	in.Snapshot(f)
}

// mayAsk takes the place of the session's goroutine. The session's limit comes first: a peer that asks all the time takes no
// snapshots from others.
func (t *Target) mayAsk(now time.Time) bool {
	select {
	case t.asked.busy <- struct{}{}:
	default:
		return false
	}
	if t.asked.limit.AllowN(now, 1) && t.s.snapshots.AllowN(now, 1) {
		return true
	}
	<-t.asked.busy
	return false
}

// snapshot fills and sends an answer, and gives the place back.
func (t *Target) snapshot(f *wire.Snapshot, heard time.Duration) {
	defer func() { <-t.asked.busy }()
	if !t.s.Life.Enter() {
		return
	}
	defer t.s.Life.Leave()
	t.look(f)
	all := t.s.Vitals()
	f.Uptime, f.Late, f.Heard = wire.NewAgo(all.Uptime), wire.NewAgo(all.Late), wire.NewAgo(heard)
	f.Transfers = uint32(all.Transfers)
	t.s.mu.RLock()
	f.Sessions = uint32(len(t.s.byID))
	t.s.mu.RUnlock()
	t.in.Snapshot(f)
}

// look fills in what belongs to the session.
func (t *Target) look(f *wire.Snapshot) {
	for end := time.Now().Add(snapshotLock); !t.mu.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			f.State = wire.SnapshotBusy
			return
		}
	}
	defer t.mu.Unlock()
	if t.over { // the core's session and links are freed
		return
	}
	f.State = wire.SnapshotServing
	if t.gone || t.frozen {
		f.State = wire.SnapshotEnding
	}
	t.order.mu.Lock()
	f.NextSeq, f.Waiting = t.nextLocked(), uint32(t.order.asm.Pending())
	t.order.mu.Unlock()
	rings, copies := t.staged.Counts()
	f.Rings, f.Copies = uint32(rings), uint32(copies)
	for _, l := range t.links[:min(len(t.links), wire.MaxRails)] {
		f.Links = append(f.Links, viewOf(l))
	}
}

// viewOf is our end of a link. Under the session's mu. Stats takes the rail's lock, as a post does.
func viewOf(l *Link) wire.LinkView {
	v := wire.LinkView{Number: uint8(l.Num)}
	if !l.Up {
		return v
	}
	s, tally := l.Core.Stats(), l.Core.Tally()
	switch {
	case s.State == core.LinkDead:
		return v
	case s.State == core.LinkStopped:
		v.State = wire.LinkStopped
	case l.Proved:
		v.State = wire.LinkUp
	default:
		v.State = wire.LinkUnproved
	}
	v.Ops, v.Bytes, v.Queued, v.Credits = s.InflightOps, s.InflightBytes, s.QueuedMsgs, s.Credits
	v.Received, v.Completions, v.Errors = tally.MessagesReceived, s.Completions, s.Errors
	if idle := Idle(tally.Last); idle >= 0 {
		v.Progress = wire.NewAgo(time.Duration(idle))
	}
	return v
}

// Used is the peers' usage of endpoints and descriptors.
func (s *Targets) Used() limits.Amount { return s.room.Used() }

// Latest is the session that the control channel began last. nil: there is none.
func (s *Targets) Latest() (latest *Target) {
	for _, t := range s.All() {
		if latest == nil || t.in.Session() > latest.in.Session() {
			latest = t
		}
	}
	return latest
}

// Held is the number of messages that wait behind a gap.
func (t *Target) Held() int {
	t.order.mu.Lock()
	defer t.order.mu.Unlock()
	return len(t.order.asm.Have())
}

// Frozen returns true if the session no longer takes notifications in.
func (t *Target) Frozen() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.frozen
}

// Close ends the session, and informs the initiator.
func (t *Target) Close(why string) {
	t.close()
	t.in.Close(why)
}

// HoldHellos keeps Hellos waiting for their turn until the caller calls release.
func (s *Targets) HoldHellos() (release func()) { return hold(s.opening, openers) }

// HoldKeyRequests is HoldHellos for requests for keys and rings.
func (s *Targets) HoldKeyRequests() (release func()) { return hold(s.asking, askers) }

func hold(turns *limits.Turns, places int) (release func()) {
	var ends []func()
	for range places {
		if end, ok := turns.Take(nil, nil); ok {
			ends = append(ends, end)
		}
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

// In is the session on the control channel.
func (t *Target) In() *peer.In { return t.in }
