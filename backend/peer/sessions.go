package peer

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"gorail/backend/limits"
	"gorail/backend/trust"
	"gorail/backend/wire"
)

// searchEvery is the shortest interval between searches for a session to end: new connections above the bound must
// cost little.
const searchEvery = 10 * time.Millisecond

// sessionTable has the sessions of a node. It bounds the inbound sessions, by source, by identity and by the bytes of their
// frames. Its methods are safe for concurrent use. No lock is taken under mu.
type sessionTable struct {
	*base

	mu         sync.Mutex
	closed     bool
	all        map[*stream]struct{}
	served     map[sessionKey]*In       // inbound sessions that can be resumed
	places     map[*stream]limits.Owner // inbound sessions, with their owner
	room       limits.Places            // what they count
	lastSearch time.Time                // last search for a session to end
	shedding   bool                     // shedAll is running,
	shedAgain  bool                     // and shed was called since its last look
}

// sessionKey identifies an inbound session, by the initiator's numbers.
type sessionKey struct {
	engine  wire.EngineID
	session uint64
}

// newSessionTable makes a table. The caller sets its base before the first session.
func newSessionTable() *sessionTable {
	return &sessionTable{all: make(map[*stream]struct{}), served: make(map[sessionKey]*In),
		places: make(map[*stream]limits.Owner)}
}

// add adds a session. It returns false after close.
func (t *sessionTable) add(s *stream) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.all[s] = struct{}{}
	return true
}

// remove removes a session and frees its place.
func (t *sessionTable) remove(s *stream) {
	s.Release()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, s)
	if owner, counted := t.places[s]; counted {
		delete(t.places, s)
		t.room.Give(owner, aSession)
	}
}

// close stops adding sessions, and returns the existing ones.
func (t *sessionTable) close() []*stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return slices.Collect(maps.Keys(t.all))
}

// list returns the existing sessions.
func (t *sessionTable) list() []*stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.all))
}

// sizes returns the number of sessions of each direction.
func (t *sessionTable) sizes() (in, out uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.all {
		if s.Inbound() {
			in++
		} else {
			out++
		}
	}
	return in, out
}

// addServed makes a session resumable.
func (t *sessionTable) addServed(in *In) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.served[sessionKey{in.engine, in.id}] = in
}

func (t *sessionTable) removeServed(in *In) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if key := (sessionKey{in.engine, in.id}); t.served[key] == in {
		delete(t.served, key)
	}
}

// find returns the session that an initiator names, or nil.
func (t *sessionTable) find(key sessionKey) *In {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.served[key]
}

// aSession is what a session counts.
var aSession = limits.Amount{Sessions: 1}

// place counts one more inbound session. At a bound it returns a busy error for the new initiator, which tries again.
// It then also makes room.
func (t *sessionTable) place(s *stream, owner limits.Owner, proved trust.Peer) *RejectError {
	most := limits.MostOf(limits.Amount{Sessions: t.cfg.MaxSessions}, limits.Amount{Sessions: t.cfg.MaxPerSource})
	t.mu.Lock()
	refusal := t.room.Take(owner, aSession, most, time.Now())
	if refusal.By == limits.ByNone {
		t.places[s] = owner //limit:sessions //limit:source_sessions //limit:identity_sessions
	}
	t.mu.Unlock()
	var limit limits.Limit
	var what, bound string
	switch refusal.By {
	case limits.ByNone:
		return nil
	case limits.ByAll:
		limit, what, bound = limits.Sessions, "sessions are served", "option max_sessions"
	case limits.BySource:
		limit, what, bound = limits.SourceSessions, "sessions from "+owner.Source.String()+" are served", "one address may have three quarters of option max_sessions"
	case limits.ByIdentity:
		limit, what, bound = limits.IdentitySessions, "sessions of the identity "+proved.String()+" are served", "one identity may have three quarters of option max_sessions, and of those of its address"
	}
	t.cfg.Limits.Hit(limit)
	t.makeRoom(refusal)
	return &RejectError{Code: wire.CodeBusy, Text: fmt.Sprintf("%d %s already (%s)", refusal.Has.Sessions, what, bound)}
}

// makeRoom implements Node.MakeRoom.
func (t *sessionTable) makeRoom(f limits.Refusal) {
	now := time.Now()
	t.mu.Lock()
	soon := now.Sub(t.lastSearch) < searchEvery && !f.Lent // Lent comes once until a session has ended
	if !soon {
		t.lastSearch = now
	}
	t.mu.Unlock()
	if soon {
		return
	}
	var silent *stream
	longest := time.Duration(-1)
	for s, owner := range t.serving() {
		if !f.Asks(owner) || s.State() != Ready {
			continue
		}
		s.PingIfDue() // an idle peer owes us no heartbeat; one that does not answer is silent from now on
		if quiet := s.Silence(now); quiet > longest {
			silent, longest = s, quiet
		}
	}
	switch {
	case silent == nil:
	case longest > t.cfg.heartbeat():
		endFor(silent, ErrSilent, "silent for %v, and another session needs the place (option max_sessions; of endpoints: ulimit -n)",
			longest.Round(time.Millisecond))
	case f.Lent:
		endFor(silent, ErrRecalled, "its identity has more than its share, and another identity needs the place (option max_sessions; of endpoints: ulimit -n)")
	}
}

// endFor ends a session at a bound, and tells the peer which option it is.
func endFor(s *stream, kind error, text string, args ...any) {
	why := fmt.Sprintf(text, args...)
	s.End(Lost, fmt.Errorf("%w: %s: %s", kind, s.Peer(), why), s.Bye(why))
}

// serving returns the inbound sessions and their owners.
func (t *sessionTable) serving() map[*stream]limits.Owner {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.places)
}

// shed starts to end sessions, those with the most bytes of frames first, until all inbound sessions hold at most
// Config.Memory. It may be called at any time, and does not wait.
func (t *sessionTable) shed() {
	if t.env.Held.Load() <= int64(t.cfg.Memory) { //limit:control_frames
		return
	}
	t.mu.Lock()
	t.shedAgain = true
	busy := t.shedding
	t.shedding = true
	t.mu.Unlock()
	if !busy {
		t.spawn(t.shedAll)
	}
}

// shedAll is the goroutine of shed. It looks again after every call of shed that came meanwhile.
func (t *sessionTable) shedAll() {
	for t.shedRequested() {
		for t.shedOne() {
		}
	}
}

// shedRequested reports whether shed was called since the last look. If not, shedAll ends, and the next call starts
// it again.
func (t *sessionTable) shedRequested() (again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	again, t.shedAgain = t.shedAgain, false
	t.shedding = again
	return again
}

// shedOne ends one session. It returns false if the others fit. Ended sessions do not count, because they release
// their memory.
func (t *sessionTable) shedOne() bool {
	var worst *stream
	most, all := 0, 0
	for s := range t.serving() {
		if s.State().Over() {
			continue
		}
		held := s.Held()
		all += held
		if held > most {
			worst, most = s, held
		}
	}
	if worst == nil || all <= t.cfg.Memory {
		return false
	}
	t.env.Count.Overflows.Add(1)
	endFor(worst, ErrOverflow, "the frames of this session take %d MiB, and those of all sessions more than %d MiB", most>>20, t.cfg.Memory>>20)
	return true
}
