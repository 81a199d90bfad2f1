package peer

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gorail/backend/limits"
	"gorail/backend/peer/stream"
	"gorail/backend/wire"
)

// searchEvery is the shortest interval between searches for a session to end: new connections above the bound must
// cost little.
const searchEvery = 10 * time.Millisecond

// registry has the sessions of a node. It bounds the inbound sessions, by source and by the bytes of their frames.
type registry struct {
	*base

	mu         sync.Mutex
	closed     bool
	all        map[*stream.Stream]struct{}
	served     map[sessionKey]*In            // inbound sessions that can be resumed
	places     map[*stream.Stream]netip.Addr // inbound sessions, with their source
	sources    map[netip.Addr]int            // number of inbound sessions of each source
	lastSearch time.Time                     // last search for a session to end
	shedding   bool                          // shedAll is running,
	shedAgain  bool                          // and shed was called since its last look
}

// sessionKey identifies an inbound session, by the initiator's numbers.
type sessionKey struct {
	engine  wire.EngineID
	session uint64
}

// newRegistry makes a registry. The caller sets its base before the first session.
func newRegistry() *registry {
	return &registry{all: make(map[*stream.Stream]struct{}), served: make(map[sessionKey]*In),
		places: make(map[*stream.Stream]netip.Addr), sources: make(map[netip.Addr]int)}
}

// add adds a session. It returns false after close.
func (r *registry) add(s *stream.Stream) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.all[s] = struct{}{}
	return true
}

// remove removes a session and frees its place.
func (r *registry) remove(s *stream.Stream) {
	s.Release()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, s)
	source, counted := r.places[s]
	if !counted {
		return
	}
	delete(r.places, s)
	if r.sources[source]--; r.sources[source] == 0 {
		delete(r.sources, source)
	}
}

// close stops adding sessions, and returns the existing ones.
func (r *registry) close() []*stream.Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
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

// place counts one more inbound session. At a bound it returns a busy error for the new initiator, which tries again.
// It then also ends the session with the longest silent peer, if that peer has missed its heartbeats.
func (r *registry) place(s *stream.Stream, source netip.Addr) *RejectError {
	r.mu.Lock()
	all, same := len(r.places), r.sources[source]
	fits := all < r.cfg.MaxSessions && same < r.cfg.MaxPerSource
	if fits {
		r.places[s] = source //limit:sessions
		r.sources[source]++  //limit:source_sessions
	}
	r.mu.Unlock()
	switch {
	case fits:
		return nil
	case all >= r.cfg.MaxSessions:
		r.cfg.Limits.Hit(limits.Sessions)
		r.makeRoom(netip.Addr{})
		return busyBy(all, "sessions are served", "max_sessions")
	default:
		r.cfg.Limits.Hit(limits.SourceSessions)
		r.makeRoom(source)
		return busyBy(same, "sessions from "+source.String()+" are served", "max_sessions_per_source")
	}
}

func busyBy(count int, what, option string) *RejectError {
	return &RejectError{Code: wire.CodeBusy, Text: fmt.Sprintf("%d %s already (option %s)", count, what, option)}
}

// makeRoom implements Node.MakeRoom.
func (r *registry) makeRoom(source netip.Addr) {
	now := time.Now()
	r.mu.Lock()
	soon := now.Sub(r.lastSearch) < searchEvery
	if !soon {
		r.lastSearch = now
	}
	r.mu.Unlock()
	if soon {
		return
	}
	var silent *stream.Stream
	var longest time.Duration
	for s, from := range r.serving() {
		if source.IsValid() && from != source || s.State() != Ready {
			continue
		}
		if quiet := s.Silence(now); quiet > longest {
			silent, longest = s, quiet
		}
	}
	if silent == nil || longest <= r.cfg.heartbeat() {
		return
	}
	endFor(silent, ErrSilent, "silent for %v, and another session needs the place (options max_sessions, max_sessions_per_source, max_endpoints)",
		longest.Round(time.Millisecond))
}

// endFor ends a session at a bound, and tells the peer which option it is.
func endFor(s *stream.Stream, kind error, text string, args ...any) {
	why := fmt.Sprintf(text, args...)
	s.End(Lost, fmt.Errorf("%w: %s: %s", kind, s.Peer(), why), s.Bye(why))
}

// serving returns the inbound sessions and their sources.
func (r *registry) serving() map[*stream.Stream]netip.Addr {
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
	var worst *stream.Stream
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
	endFor(worst, ErrOverflow, "the frames of this session take %d MiB, and those of all sessions more than %d MiB (option control_memory)", most>>20, r.cfg.Memory>>20)
	return true
}
