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

// registry has the sessions of a node. It bounds the inbound sessions, by source, by identity and by the bytes of their
// frames.
type registry struct {
	*base

	mu         sync.Mutex
	closed     bool
	all        map[*Stream]struct{}
	served     map[sessionKey]*In       // inbound sessions that can be resumed
	places     map[*Stream]limits.Owner // inbound sessions, with their owner
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

// newRegistry makes a registry. The caller sets its base before the first session.
func newRegistry() *registry {
	return &registry{all: make(map[*Stream]struct{}), served: make(map[sessionKey]*In),
		places: make(map[*Stream]limits.Owner)}
}

// add adds a session. It returns false after close.
func (r *registry) add(s *Stream) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.all[s] = struct{}{}
	return true
}

// remove removes a session and frees its place.
func (r *registry) remove(s *Stream) {
	s.Release()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, s)
	if owner, counted := r.places[s]; counted {
		delete(r.places, s)
		r.room.Give(owner, aSession)
	}
}

// close stops adding sessions, and returns the existing ones.
func (r *registry) close() []*Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return slices.Collect(maps.Keys(r.all))
}

// list returns the existing sessions.
func (r *registry) list() []*Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.all))
}

// sizes returns the number of sessions of each direction.
func (r *registry) sizes() (in, out uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.all {
		if s.Inbound() {
			in++
		} else {
			out++
		}
	}
	return in, out
}

// addServed makes a session resumable.
func (r *registry) addServed(in *In) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.served[sessionKey{in.engine, in.id}] = in
}

func (r *registry) removeServed(in *In) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if key := (sessionKey{in.engine, in.id}); r.served[key] == in {
		delete(r.served, key)
	}
}

// find returns the session that an initiator names, or nil.
func (r *registry) find(key sessionKey) *In {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.served[key]
}

// aSession is what a session counts.
var aSession = limits.Amount{Sessions: 1}

// place counts one more inbound session. At a bound it returns a busy error for the new initiator, which tries again.
// It then also makes room.
func (r *registry) place(s *Stream, owner limits.Owner, proved trust.Peer) *RejectError {
	most := limits.MostOf(limits.Amount{Sessions: r.cfg.MaxSessions}, limits.Amount{Sessions: r.cfg.MaxPerSource})
	r.mu.Lock()
	refusal := r.room.Take(owner, aSession, most, time.Now())
	if refusal.By == limits.ByNone {
		r.places[s] = owner //limit:sessions //limit:source_sessions //limit:identity_sessions
	}
	r.mu.Unlock()
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
	r.cfg.Limits.Hit(limit)
	r.makeRoom(refusal)
	return &RejectError{Code: wire.CodeBusy, Text: fmt.Sprintf("%d %s already (%s)", refusal.Has.Sessions, what, bound)}
}

// makeRoom implements Node.MakeRoom.
func (r *registry) makeRoom(f limits.Refusal) {
	now := time.Now()
	r.mu.Lock()
	soon := now.Sub(r.lastSearch) < searchEvery && !f.Lent // Lent comes once until a session has ended
	if !soon {
		r.lastSearch = now
	}
	r.mu.Unlock()
	if soon {
		return
	}
	var silent *Stream
	longest := time.Duration(-1)
	for s, owner := range r.serving() {
		if !f.Asks(owner) || s.State() != Ready {
			continue
		}
		s.Ask() // an idle peer owes us no heartbeat; one that does not answer is silent from now on
		if quiet := s.Silence(now); quiet > longest {
			silent, longest = s, quiet
		}
	}
	switch {
	case silent == nil:
	case longest > r.cfg.heartbeat():
		endFor(silent, ErrSilent, "silent for %v, and another session needs the place (option max_sessions; of endpoints: ulimit -n)",
			longest.Round(time.Millisecond))
	case f.Lent:
		endFor(silent, ErrRecalled, "its identity has more than its share, and another identity needs the place (option max_sessions; of endpoints: ulimit -n)")
	}
}

// endFor ends a session at a bound, and tells the peer which option it is.
func endFor(s *Stream, kind error, text string, args ...any) {
	why := fmt.Sprintf(text, args...)
	s.End(Lost, fmt.Errorf("%w: %s: %s", kind, s.Peer(), why), s.Bye(why))
}

// serving returns the inbound sessions and their owners.
func (r *registry) serving() map[*Stream]limits.Owner {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.places)
}

// shed starts to end sessions, those with the most bytes of frames first, until all inbound sessions hold at most
// Config.Memory. It may be called at any time, and does not wait.
func (r *registry) shed() {
	if r.env.Held.Load() <= int64(r.cfg.Memory) { //limit:control_frames
		return
	}
	r.mu.Lock()
	r.shedAgain = true
	busy := r.shedding
	r.shedding = true
	r.mu.Unlock()
	if !busy {
		r.spawn(r.shedAll)
	}
}

// shedAll is the goroutine of shed. It looks again after every call of shed that came meanwhile.
func (r *registry) shedAll() {
	for r.shedRequested() {
		for r.shedOne() {
		}
	}
}

// shedRequested reports whether shed was called since the last look. If not, shedAll ends, and the next call starts
// it again.
func (r *registry) shedRequested() (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	again, r.shedAgain = r.shedAgain, false
	r.shedding = again
	return again
}

// shedOne ends one session. It returns false if the others fit. Ended sessions do not count, because they release
// their memory.
func (r *registry) shedOne() bool {
	var worst *Stream
	most, all := 0, 0
	for s := range r.serving() {
		if s.State().Over() {
			continue
		}
		held := s.Held()
		all += held
		if held > most {
			worst, most = s, held
		}
	}
	if worst == nil || all <= r.cfg.Memory {
		return false
	}
	r.env.Count.Overflows.Add(1)
	endFor(worst, ErrOverflow, "the frames of this session take %d MiB, and those of all sessions more than %d MiB", most>>20, r.cfg.Memory>>20)
	return true
}
