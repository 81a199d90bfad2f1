package session

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"gorail/backend/core"
	"gorail/backend/limits"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/staging"
	"gorail/backend/stats"
	"gorail/backend/wire"
)

// Target is a session in which we are the target.
type Target struct {
	s    *Targets
	in   *peer.In
	id   uint64
	sess core.Session

	events   core.Serial   // events of the core for this session
	connects *limits.Turns // its share of Targets.connecting
	pace     *limits.Pace  // bounds the time that the peer's requests take
	staged   *staging.Server
	asked    asked
	loans    loans
	order    order
	holder   region.Holder // Closing: gone, for readers without mu

	mu     sync.Mutex
	gone   bool
	frozen bool      // takes no notifications in any more
	over   bool      // its links are gone
	lost   time.Time // when it ended, if it has taken notifications in since
	log    logState
	links  []*Link
	usage  limits.Amount // counted in Targets.room
}

// asked limits the snapshots of one session.
type asked struct {
	limit *rate.Limiter
	busy  chan struct{} // one place: a goroutine makes a snapshot
}

// logState is the log's state of a session. Guarded by the session's mu.
type logState struct {
	since  time.Time // the session began then
	opened uint64    // openings that the tcp rails had ended by then: limits.tcp_openings
	missed bool      // logged that no data connection came in
	known  bool      // logged that the peer is connected
	waits  bool      // a timer for announce is set, to wait for other links
}

// notifProgress is the progress of an engine's notifications in ended sessions. The numbers continue from session to session
// while the initiator names the session before (Hello.After). Messages behind a gap then go to the next session.
type notifProgress struct {
	first, last uint64 // the numbers of the first and last session
	owner       limits.Owner
	asm         *Assembler
	skip        map[uint64]bool
}

// order is the order of a session's notifications while Go keeps it. Guarded by mu, except pending.
type order struct {
	pending atomic.Int64 // bytes of asm, counted in Targets.pending

	mu       sync.Mutex
	asm      *Assembler
	skip     map[uint64]bool // numbers that the sender gave up
	handled  uint64          // messages that the core has handed to Go
	draining bool            // a goroutine waits to answer the Drain
	drainTo  uint64          // the Drain asks for all notifications below this number
	late     [][]byte        // put in order, but memory was short
	retrying bool            // deliverAgain is due
	refused  bool            // nothing more is taken in: the peer sent an invalid notification, or the session is frozen
	first    uint64          // the initiator's session in which the numbers began
}

// Vitals is what a snapshot says of the whole engine.
type Vitals struct {
	Uptime    time.Duration
	Late      time.Duration // the ticker was so late at most, in the last ten to twenty seconds
	Transfers int           // in flight
}

// TargetConfig holds the parts of the engine that the sessions use.
type TargetConfig struct {
	Options *option.Options
	Log     *slog.Logger
	Life    *core.Lifetime
	Core    *core.Core
	Links   *Set
	Regions *region.Registry
	Staging *staging.Side
	Past    *History
	Loaded  func(agent string) (wire.EngineID, bool) // the engine whose metadata is loaded under a name
	Limits  *limits.Counts
	Vitals  func() Vitals                                // may be called at any time
	Moved   func(engine wire.EngineID, control []string) // an engine has other control addresses
}

// turns limit the work that peers cause.
type turns struct {
	opening    *limits.Turns // of Hellos
	fencing    *limits.Turns // of fences, without the connects
	connecting *limits.Turns // of endpoints that fences open: each may wait seconds for a neighbour
	asking     *limits.Turns // of requests for keys and rings
}

// Targets are all sessions in which we are the target. Safe for concurrent use.
//
// Locks, in the order in which they may be taken: the turn of an engine's Hello, Target.mu, Target.order.mu,
// Targets.mu.
type Targets struct {
	TargetConfig
	node atomic.Pointer[peer.Node]

	hellos Locks[wire.EngineID] // one session of an engine begins at a time
	room   limits.Places
	turns
	snapshots *rate.Limiter // of all sessions
	ending    chan struct{} // limits sessions that close endpoints
	freeing   chan struct{} // limits sessions that free the rest, not behind others that close endpoints
	warnLimit limits.Lines  // limits log lines that peers cause
	pending   atomic.Int64  // bytes of notifications that lack a fragment, or wait for an earlier one

	NameConflicts atomic.Uint64 // sessions that began under the name of another engine that has one
	warnedNames   atomic.Bool

	mu       sync.RWMutex
	names    names
	all      map[*peer.In]*Target
	byID     map[uint64]*Target
	byEngine map[wire.EngineID][]*Target      // by the peer's engine
	progress map[wire.EngineID]*notifProgress // progress of notifications in ended sessions
}

// open makes our end of a link. Only the goroutine of the Hello knows the session yet.
func (t *Target) open(num int, o wire.EndpointOffer) (*Link, error) {
	if int(o.Rail) >= len(t.s.Links.Rails.List) {
		return nil, fmt.Errorf("we have no rail %d", o.Rail)
	}
	l, err := t.s.Links.Open(num, int(o.Rail), int(o.Own))
	l.PeerID, l.target = o.ID, t
	t.links = append(t.links, l)
	if err == nil && len(o.Addr) == 0 {
		err = errors.New("the peer has no endpoint for this link")
	}
	if err == nil {
		err = t.s.Links.Connect(l, t.sess, o.Addr, t.channel(), false)
	}
	if err != nil {
		_ = t.s.Links.Quiesce(l) // Quiesce logs the error
	}
	return l, err
}

// drop ends the session's links, and with them the peer's access to our memory: before the session is known, or at its end, under mu and
// order.mu.
func (t *Target) drop() {
	if quiet := t.s.Links.Drop(t.links, t.sess, -3, nil); quiet == nil {
		t.leaveRoom()
	} else {
		t.s.Life.Go(func() { <-quiet; t.leaveRoom() })
	}
	t.links = nil
}

// channel is what the links need of the control channel.
func (t *Target) channel() Channel {
	return Channel{Role: core.Target, KeySalt: t.in.KeySalt(), Secret: t.in.LinkSecret}
}

// view: under mu.
func (t *Target) view() View {
	told := t.in.Told()
	moves := &stats.Moves{Written: told.Written, Read: told.Read, WrittenRate: told.WrittenRate, ReadRate: told.ReadRate, Age: stats.Never}
	if !told.At.IsZero() {
		moves.Age = stats.Since(time.Since(told.At))
	}
	return NewView(stats.Peer{Agent: t.in.Agent(), Engine: t.in.Engine().String(), Direction: stats.Target, State: "ready", Session: t.id, Moves: moves},
		t.links, func(int) string { return "" })
}

// reaches returns true if a link of the session is on a rail that has the region, or if the session has ended.
func (t *Target) reaches(g *region.Region) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gone || slices.ContainsFunc(t.links, func(l *Link) bool { return l.Up && g.Rails.Load()&(1<<l.Rail.Index) != 0 })
}

// holdsKeys prepares what the registry needs of the session.
func (t *Target) holdsKeys() {
	h := &t.holder
	h.Salt, h.NextID, h.Overdue = t.in.KeySalt(), t.s.Life.NextID, t.keepsMemory
	h.Send = func(id uint64, regions []uint64, renewed bool) {
		if renewed {
			t.in.Renew(id, regions)
		} else {
			t.in.Revoke(id, regions)
		}
	}
	h.Late = func() {
		t.s.warnOf(t.in, "peer does not give up GPU memory that our application has unmapped: is its process stopped? Its GPU memory is freed when the process continues or ends")
	}
}

// keepsMemory ends the session of a peer that has not given up memory in time. why is what became of the memory.
func (t *Target) keepsMemory(why string) {
	t.s.Limits.Hit(limits.Revocations)
	t.s.warnOf(t.in, "peer did not give up memory of ours in time: its session is closed", "why", why, "cancel_timeout", t.s.Options.CancelTimeout)
	t.close()
	t.in.Close(why + ", and no answer came within cancel_timeout")
}

// wantStart asks the initiator for the links over a rail that has just come up.
func (t *Target) wantStart(rl *rails.Rail) {
	t.want(rl, func(l *Link) bool { return !l.Up })
}

// wantFences asks the initiator to fence the links over a rail whose device went down, if a link over another device is up.
func (t *Target) wantFences(rl *rails.Rail) {
	t.want(rl, func(l *Link) bool {
		return l.Up && !l.Shared() && slices.ContainsFunc(t.links, func(o *Link) bool {
			return o.Up && o.Core.Stats().State == core.LinkUp && o.Rail.Device().Name != rl.Device().Name
		})
	})
}

// want asks the initiator to fence the links over a rail for which is holds. is runs under mu.
func (t *Target) want(rl *rails.Rail, is func(l *Link) bool) {
	if !t.s.Life.Enter() {
		return
	}
	defer t.s.Life.Leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.links {
		if !t.gone && !t.frozen && l.Rail == rl && is(l) {
			t.in.WantFence(uint8(l.Num), l.Epoch)
		}
	}
}

// leaveRoom is called after the endpoints are closed. It may be called again.
func (t *Target) leaveRoom() {
	t.s.room.Give(t.in.Owner(), t.usage)
	t.usage = limits.Amount{}
}

// Of is the session of a control channel session. nil: it has ended, or has not begun.
func (s *Targets) Of(in *peer.In) *Target {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.all[in]
}

// All are all sessions.
func (s *Targets) All() []*Target {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Values(s.all))
}
