package peer

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gorail/backend/peer/stream"
	"gorail/backend/wire"
)

// searchEvery is how often a session that may give way is looked for: newcomers at the bound must cost little.
const searchEvery = 10 * time.Millisecond

// registry knows the sessions of a node, and bounds those that it serves, by source and by the bytes of their frames.
type registry struct {
	*base

	mu       sync.Mutex
	closed   bool
	all      map[*stream.Stream]struct{}
	served   map[sessionKey]*In            // those that may be resumed
	places   map[*stream.Stream]netip.Addr // of sessions that we serve, by where they come from
	sources  map[netip.Addr]int            // how many of these
	searched time.Time                     // when a session that gives way was looked for last
	shedding bool                          // sessions that hold too much are being looked for,
	again    bool                          // and shed was called since
}

// sessionKey is how an initiator names its session.
type sessionKey struct {
	engine  wire.EngineID
	session uint64
}

// newRegistry needs its base before its first session.
func newRegistry() *registry {
	return &registry{all: make(map[*stream.Stream]struct{}), served: make(map[sessionKey]*In),
		places: make(map[*stream.Stream]netip.Addr), sources: make(map[netip.Addr]int)}
}

// add makes a session known to close; false when that was called.
func (r *registry) add(s *stream.Stream) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.all[s] = struct{}{}
	return true
}

// remove forgets a session, and gives its place back.
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

// close takes no more sessions, and gives those that there are.
func (r *registry) close() []*stream.Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return slices.Collect(maps.Keys(r.all))
}

// sizes counts the sessions of each direction.
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

// enlist makes a session one that can be resumed.
func (r *registry) enlist(in *In) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.served[sessionKey{in.engine, in.id}] = in
}

func (r *registry) dismiss(in *In) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if key := (sessionKey{in.engine, in.id}); r.served[key] == in {
		delete(r.served, key)
	}
}

// find is the session that an initiator names; nil: there is none.
func (r *registry) find(key sessionKey) *In {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.served[key]
}

// place counts one more session that we serve. At a bound the session whose peer is silent for longest gives way, if that
// peer has missed its heartbeats; the newcomer is told to come back.
func (r *registry) place(s *stream.Stream, source netip.Addr) *RejectError {
	r.mu.Lock()
	all, same := len(r.places), r.sources[source]
	fits := all < r.cfg.MaxSessions && same < r.cfg.MaxPerSource
	if fits {
		r.places[s] = source
		r.sources[source]++
	}
	r.mu.Unlock()
	switch {
	case fits:
		return nil
	case all >= r.cfg.MaxSessions:
		r.makeRoom(netip.Addr{})
		return busyBy(all, "sessions are served", "max_sessions")
	default:
		r.makeRoom(source)
		return busyBy(same, "sessions from "+source.String()+" are served", "max_sessions_per_source")
	}
}

func busyBy(count int, what, option string) *RejectError {
	return &RejectError{Code: wire.CodeBusy, Text: fmt.Sprintf("%d %s already (option %s)", count, what, option)}
}

// makeRoom is Node.MakeRoom.
func (r *registry) makeRoom(source netip.Addr) {
	now := time.Now()
	r.mu.Lock()
	soon := now.Sub(r.searched) < searchEvery
	if !soon {
		r.searched = now
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
	silent.End(Lost, fmt.Errorf("%w: %s: silent for %v, and others need its place (options max_sessions, max_sessions_per_source, max_endpoints)",
		ErrSilent, silent.Peer(), longest.Round(time.Millisecond)), nil)
}

// serving are the sessions with initiators, and where they come from.
func (r *registry) serving() map[*stream.Stream]netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.places)
}

// shed has sessions ended, those that hold the most bytes of frames first, until all that we serve hold no more than Config.Memory. It may
// be called at any time, and does not wait.
func (r *registry) shed() {
	if r.env.Held.Load() <= int64(r.cfg.Memory) {
		return
	}
	r.mu.Lock()
	r.again = true
	busy := r.shedding
	r.shedding = true
	r.mu.Unlock()
	if !busy {
		r.spawn(r.shedAll)
	}
}

// shedAll is the goroutine of shed. It looks once more for every call that came while it looked.
func (r *registry) shedAll() {
	for r.called() {
		for r.shedOne() {
		}
	}
}

// called says that shed was called since the last look. If not, shedAll ends: the next call starts it again.
func (r *registry) called() (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	again, r.again = r.again, false
	r.shedding = again
	return again
}

// shedOne ends a session; false: the rest fits. Sessions that are over do not count: they give back what they hold.
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
	worst.End(Lost, fmt.Errorf("%w: %s: its frames take %d MiB, and those of all peers more than %d MiB (option control_memory)",
		ErrOverflow, worst.Peer(), most>>20, r.cfg.Memory>>20), nil)
	return true
}
