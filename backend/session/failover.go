package session

import (
	"slices"
	"time"
)

// Phase is the state of a link. A target's link is Working, or BackingOff if its endpoint did not open.
type Phase int

const (
	Working    Phase = iota // the link posts
	Fencing                 // its endpoint is closed, and the target is asked to close the target's endpoint
	Draining                // the link has stopped, and its posted operations end by themselves
	BackingOff              // fenced; other links have its work; it is retried after a pause
	Probing                 // only a probe goes out
)

// Bounds of the pauses of a link that failed again, and of the time of a probe.
const (
	FirstPause   = time.Millisecond
	MostPause    = 500 * time.Millisecond // if no other link works
	FirstBackoff = 100 * time.Millisecond // if others work
	MaxBackoff   = 2 * time.Second
	MostUnproved = 10 * time.Second // of a link over which nothing ever came, for example behind a firewall
	ProbeTime    = time.Second
)

// LinkState is the failover state of one link. Guarded by the lock of its session.
type LinkState struct {
	OwnRail        int    // index of our rail; of its first one, if it is a shard of a device
	Up             bool   // the core has the link
	Epoch          uint32 // incremented with every endpoint
	Phase          Phase
	Since          time.Time // start of the phase
	Proved         bool      // messages have gone both ways since the session began; on a target: one has come in
	UnprovedLogged bool      // the log says that the link is not proved
	Closed         bool      // the last fence only closes: see CloseFirst
	DownLogged     bool      // the log says that the rail is down since the last fence

	Pause time.Duration // before the next try
	good  uint64        // completions without error at the last failure
	seen  uint64        // completions at the last call of Watch
	moved time.Time     // last time with progress, or with nothing in flight before
	done  time.Time     // last time with progress
	busy  bool          // operations were in flight at the last call of Watch
}

// Enter begins a phase.
func (l *LinkState) Enter(p Phase, now time.Time) { l.Phase, l.Since = p, now }

// Away returns true if the link has failed and backs off or is probed: other links may do its work.
func (l *LinkState) Away() bool { return l.Phase == BackingOff || l.Phase == Probing && l.Epoch > 0 }

// GrowBackoff doubles the pause before the next try of a link whose work others do.
func (l *LinkState) GrowBackoff() {
	most := MaxBackoff
	if l.UnprovedLogged {
		most = MostUnproved
	}
	l.Pause = min(max(2*l.Pause, FirstBackoff), most)
}

// Prove notes that messages go both ways.
func (l *LinkState) Prove() { l.Proved, l.UnprovedLogged = true, false }

// Failover holds the links of one session. Guarded by the session's lock.
type Failover struct {
	Links   []*LinkState
	Timeout time.Duration    // option rail_timeout
	Now     func() time.Time // nil: time.Now

	looked time.Time // last call of Watch
}

func (s *Failover) now() time.Time {
	if s.Now == nil {
		return time.Now()
	}
	return s.Now()
}

// any returns true if is(o) holds for a link o other than l.
func (s *Failover) any(l *LinkState, is func(o *LinkState) bool) bool {
	return slices.ContainsFunc(s.Links, func(o *LinkState) bool { return o != l && is(o) })
}

// OthersWork returns true if another link of the session works.
func (s *Failover) OthersWork(l *LinkState) bool {
	return s.any(l, func(o *LinkState) bool { return o.Phase == Working })
}

// OtherRailWorks returns true if a link on another of our rails works.
func (s *Failover) OtherRailWorks(l *LinkState) bool {
	return s.any(l, func(o *LinkState) bool { return o.OwnRail != l.OwnRail && o.Phase == Working })
}

// SiblingWorks returns true if another link on the same rail works.
func (s *Failover) SiblingWorks(l *LinkState) bool {
	return s.any(l, func(o *LinkState) bool { return o.OwnRail == l.OwnRail && o.Phase == Working })
}

// AnyUsable returns true if another link is up, and so may still work.
func (s *Failover) AnyUsable(l *LinkState) bool {
	return s.any(l, func(o *LinkState) bool { return o.Up })
}

// AnyProved returns true if a link is proved.
func (s *Failover) AnyProved() bool { return s.any(nil, func(o *LinkState) bool { return o.Proved }) }

// Known returns true if one link is proved and no other still waits for its first probe.
func (s *Failover) Known() bool {
	return s.AnyProved() && !s.any(nil, func(o *LinkState) bool { return !o.Proved && o.Phase == Probing && o.Epoch == 0 })
}

// Count is a link's number of completions and of operations in flight.
type Count struct{ Completions, Errors, InFlight uint64 }

// CloseFirst decides how a fence begins. true: it closes both endpoints and opens none. Other links then have the link's work after one
// round trip, and opening, which on RoCE may wait a second for the kernel to find the neighbour, delays no byte. The next fence opens.
func (s *Failover) CloseFirst(l *LinkState) bool { return l.Phase == Working && s.OthersWork(l) }

// Failed handles a link that reported an error, and returns the pause before its fence; 0: fence at once. If others work,
// the link is fenced at once, so that others take its work, and backs off after the fence. If no other works, the link
// is fenced at once on its first endpoint and after progress. Without progress since the last failure the pause doubles:
// otherwise a link that never recovers, with notifications waiting for it, would keep a core busy. urgent: a revocation
// waits for the fence, so the pause is 0.
func (s *Failover) Failed(l *LinkState, n Count, urgent bool) (pause time.Duration) {
	others, good := s.OthersWork(l), n.Completions-n.Errors
	switch {
	case good > l.good+1 || l.Epoch == 0: // one completion may be a probe, and is no progress
		l.good, l.Pause = good, 0
	case others:
		l.GrowBackoff()
	default:
		l.Pause = min(max(2*l.Pause, FirstPause), MostPause)
	}
	if others || urgent {
		return 0
	}
	return l.Pause
}

// ReportUnproved returns true, once, if a fenced link was not established while others were.
func (s *Failover) ReportUnproved(l *LinkState) bool {
	if l.Proved || l.UnprovedLogged || !s.OthersWork(l) {
		return false
	}
	l.UnprovedLogged = true
	return true
}

// Renewed handles a link that continues with another endpoint. It returns true if the link begins with a probe.
func (s *Failover) Renewed(l *LinkState) (probe bool) {
	if l.Proved {
		l.Enter(Working, s.now())
		l.moved, l.busy = s.now(), false
	} else {
		l.Enter(Probing, s.now())
	}
	return !l.Proved
}

// Retry is the next try of a link that backs off.
type Retry struct {
	Fence bool // by a fence, because the link has no endpoint; else by a probe
	After time.Duration
}

// BackOff handles a quiet link that is not used for now: others work, or the link cannot be used (err) while others may
// work later.
func (s *Failover) BackOff(l *LinkState, err error) Retry {
	others := s.OthersWork(l)
	l.Enter(BackingOff, s.now())
	switch {
	case !others:
		return Retry{Fence: true, After: max(l.Pause, FirstBackoff)}
	case err != nil:
		l.GrowBackoff()
		return Retry{Fence: true, After: l.Pause}
	}
	return Retry{After: l.Pause}
}

// CannotProbe handles a link that could not send a probe. It returns the pause before the fence.
func (s *Failover) CannotProbe(l *LinkState) (pause time.Duration) {
	l.Pause = max(l.Pause, FirstBackoff)
	return l.Pause
}

// ProbeAnswered handles a link whose probe was answered.
func (s *Failover) ProbeAnswered(l *LinkState) {
	l.Enter(Working, s.now())
	l.moved, l.busy = s.now(), false
	l.Prove()
}

// Reasons for which Watch finds a link stuck.
const (
	NoAnswer = "no answer to a probe"
	NoMove   = "no completions on this link while another link is healthy (option rail_timeout)"
	NoPath   = "another link over this rail has no completions, and this one has none either (option rail_timeout)"
)

// Watch finds stuck links: a probe without an answer, and a link without progress while another link is healthy: it makes
// progress, or it is idle over another of our rails. An idle link over the same rail has the same path, and says nothing. If none is
// healthy, the cause may be the peer as a whole. The other links of a silent rail are stuck with it, idle ones too: they would only
// take its work and wait again. count reads a working link. Watch calls stuck for each link to fence.
func (s *Failover) Watch(count func(i int) Count, stuck func(i int, why string)) {
	now := s.now()
	unseen := max(0, now.Sub(s.looked)-s.Timeout/2) // nobody looked: this process was stopped, or starves
	s.looked = now
	recent := func(t time.Time) bool { return now.Sub(t) <= s.Timeout }
	for i, l := range s.Links {
		if l.Phase != Working {
			continue
		}
		n := count(i)
		l.moved = l.moved.Add(unseen)
		if n.Completions != l.seen {
			l.seen, l.done, l.moved = n.Completions, now, now
		}
		if !l.busy || n.InFlight == 0 { // what has just been posted has its time from now on
			l.moved = now
		}
		l.busy = n.InFlight > 0
	}
	silent := s.silent(now, recent)
	for i, l := range s.Links {
		switch {
		case l.Phase == Probing && now.Sub(l.Since) > ProbeTime && (s.OthersWork(l) || s.AnyProved()): // else connect_timeout ends the session
			l.GrowBackoff()
			stuck(i, NoAnswer)
		case l.Phase == Working && !recent(l.moved) && s.any(l, func(o *LinkState) bool {
			return o.Phase == Working && (recent(o.done) || o.OwnRail != l.OwnRail && recent(o.moved))
		}):
			stuck(i, NoMove)
		case l.Phase == Working && slices.Contains(silent, l.OwnRail):
			stuck(i, NoPath)
		}
	}
}

// silent returns our rails over which a link is stuck and none has completed anything lately, while no link of another rail is stuck.
func (s *Failover) silent(now time.Time, recent func(time.Time) bool) (rails []int) {
	works := func(rail int, is func(l *LinkState) bool) bool { // a link over the rail works and is so
		return s.any(nil, func(l *LinkState) bool { return l.OwnRail == rail && l.Phase == Working && is(l) })
	}
	stuck := func(l *LinkState) bool { return !recent(l.moved) }
	for _, l := range s.Links {
		if l.Phase == Working && stuck(l) && !works(l.OwnRail, func(o *LinkState) bool { return now.Sub(o.done) <= s.Timeout/2 }) &&
			s.any(l, func(o *LinkState) bool {
				return o.OwnRail != l.OwnRail && o.Phase == Working && !works(o.OwnRail, stuck)
			}) {
			rails = append(rails, l.OwnRail)
		}
	}
	return rails
}

// DeviceChanged handles a link whose network device went down or came up. It returns true if the link must be fenced. A device
// that went down fences its link only if another rail can do its work.
func (s *Failover) DeviceChanged(l *LinkState, up bool) (fence bool) {
	switch {
	case !up && (l.Phase == Working || l.Phase == Probing) && s.OtherRailWorks(l):
		l.Pause = FirstBackoff
		return true
	case up && (l.Phase == BackingOff || l.Phase == Probing):
		l.Pause = 0
		return true
	}
	return false
}
