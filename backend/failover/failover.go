// Package failover decides what becomes of the links of a session when one fails, rests, is probed or works again. It is pure: it gets what has
// happened and the time, and says what to do. Its callers close endpoints, ask the peer and set timers.
//
//	Probing -> Working -> Fencing -> Working            when it is the only one
//	                      Fencing -> BackingOff -> Probing when others work
//
// Where peers share an endpoint nothing can be fenced: Draining takes the place of Fencing.
package failover

import (
	"slices"
	"time"
)

// Phase is where a link stands. Targets' links only ever work.
type Phase int

const (
	Working    Phase = iota // it posts
	Fencing                 // its endpoint is closed and the target is asked to close its own
	Draining                // it has stopped, and what it has posted ends by itself
	BackingOff              // fenced; its work is with others; it is tried again after a pause
	Probing                 // nothing but a probe goes out
)

// How long a link that failed again rests before the next try, and how long a probe may take.
const (
	FirstPause   = time.Millisecond
	MostPause    = 500 * time.Millisecond // alone
	FirstBackoff = 100 * time.Millisecond // with others at work
	MaxBackoff   = 2 * time.Second
	MostUnproved = 10 * time.Second // of a link over which nothing ever came: a firewall, say
	ProbeTime    = time.Second
)

// Link is what failover knows of one link. Guarded by the lock of its session.
type Link struct {
	OwnRail int    // its index
	Up      bool   // the core has it
	Epoch   uint32 // grows with every endpoint
	Phase   Phase
	Since   time.Time // of the phase
	Proved  bool      // messages have gone both ways since the session began; a target's: one has come in
	Told    bool      // the log has it that this is not so

	Pause time.Duration // before the next try
	good  uint64        // completions without error at the last failure
	seen  uint64        // completions at the last look of Watch
	moved time.Time     // when it made progress last, or had nothing to do
}

// Enter begins a phase.
func (l *Link) Enter(p Phase, now time.Time) { l.Phase, l.Since = p, now }

// Away says that the link has failed and rests, or is tried again: others may stand in for it.
func (l *Link) Away() bool { return l.Phase == BackingOff || l.Phase == Probing && l.Epoch > 0 }

// GrowBackoff doubles the pause before the next try of a link that others stand in for.
func (l *Link) GrowBackoff() {
	most := MaxBackoff
	if l.Told {
		most = MostUnproved
	}
	l.Pause = min(max(2*l.Pause, FirstBackoff), most)
}

// Prove notes that messages go both ways.
func (l *Link) Prove() { l.Proved, l.Told = true, false }

// Session are the links of one session. Guarded by its lock.
type Session struct {
	Links   []*Link
	Timeout time.Duration    // option rail_timeout
	Now     func() time.Time // nil: time.Now
}

func (s *Session) now() time.Time {
	if s.Now == nil {
		return time.Now()
	}
	return s.Now()
}

// any says whether a link other than l is so.
func (s *Session) any(l *Link, is func(o *Link) bool) bool {
	return slices.ContainsFunc(s.Links, func(o *Link) bool { return o != l && is(o) })
}

// Others says whether another link of the session works.
func (s *Session) Others(l *Link) bool {
	return s.any(l, func(o *Link) bool { return o.Phase == Working })
}

// OtherRailWorks says whether a link of another rail of ours works.
func (s *Session) OtherRailWorks(l *Link) bool {
	return s.any(l, func(o *Link) bool { return o.OwnRail != l.OwnRail && o.Phase == Working })
}

// SiblingWorks says whether another link of the same rail works.
func (s *Session) SiblingWorks(l *Link) bool {
	return s.any(l, func(o *Link) bool { return o.OwnRail == l.OwnRail && o.Phase == Working })
}

// AnyUsable says whether another link may yet work.
func (s *Session) AnyUsable(l *Link) bool { return s.any(l, func(o *Link) bool { return o.Up }) }

// AnyProved says whether a link is proved.
func (s *Session) AnyProved() bool { return s.any(nil, func(o *Link) bool { return o.Proved }) }

// Known says that it is known of every link whether it works, and that one does.
func (s *Session) Known() bool {
	return s.AnyProved() && !s.any(nil, func(o *Link) bool { return !o.Proved && o.Phase == Probing && o.Epoch == 0 })
}

// Count is what a link has completed since it is there.
type Count struct{ Completions, Errors, InFlight uint64 }

// Failed has a link that reported an error: it is fenced after the pause; 0: at once. Alone it is fenced at once, or, when nothing has gone through
// since the last time, after a pause that doubles: a link that is away for good, and notifications that wait for it, would keep a
// core busy. With others at work it is fenced at once, for them to take over, and rests afterwards. urgent: something waits for the fence.
func (s *Session) Failed(l *Link, n Count, urgent bool) (pause time.Duration) {
	others, good := s.Others(l), n.Completions-n.Errors
	switch {
	case good > l.good+1 || l.Epoch == 0: // a probe alone is no news
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

// ReportUnproved says, once, that a link that is fenced did not come about while others did.
func (s *Session) ReportUnproved(l *Link) bool {
	if l.Proved || l.Told || !s.Others(l) {
		return false
	}
	l.Told = true
	return true
}

// Renewed has a link that goes on with another endpoint, and says whether by a probe.
func (s *Session) Renewed(l *Link) (probe bool) {
	if l.Proved {
		l.Enter(Working, s.now())
	} else {
		l.Enter(Probing, s.now())
	}
	return !l.Proved
}

// Retry is how a link that rests is tried again.
type Retry struct {
	Fence bool // for it has no endpoint; else by a probe
	After time.Duration
}

// BackOff has a link that is quiet, and is not used for the present: others work, or err is why it can't be used and others may yet work.
func (s *Session) BackOff(l *Link, err error) Retry {
	others := s.Others(l)
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

// Unprobed has a link that could not even be probed: it is fenced after the pause.
func (s *Session) Unprobed(l *Link) (pause time.Duration) {
	l.Pause = max(l.Pause, FirstBackoff)
	return l.Pause
}

// CameUp has a link whose probe is through.
func (s *Session) CameUp(l *Link) {
	l.Enter(Working, s.now())
	l.moved = s.now()
	l.Prove()
}

// Why Watch finds a link stuck.
const (
	NoAnswer = "no answer to a probe"
	NoMove   = "nothing moves on it while other rails are well (option rail_timeout)"
)

// Watch looks for links that are stuck: a probe without an answer, and a link on which nothing moves while another is not
// stuck (else it may be the peer as a whole). count reads a link that works; stuck is called for each that is to be fenced.
func (s *Session) Watch(count func(i int) Count, stuck func(i int, why string)) {
	now, well := s.now(), false
	for i, l := range s.Links {
		if l.Phase != Working {
			continue
		}
		if n := count(i); n.Completions != l.seen || n.InFlight == 0 {
			l.seen, l.moved = n.Completions, now
		}
		well = well || now.Sub(l.moved) <= s.Timeout
	}
	for i, l := range s.Links {
		switch {
		case l.Phase == Probing && now.Sub(l.Since) > ProbeTime && (s.Others(l) || s.AnyProved()): // else connect_timeout ends the session
			l.GrowBackoff()
			stuck(i, NoAnswer)
		case l.Phase == Working && well && now.Sub(l.moved) > s.Timeout:
			stuck(i, NoMove)
		}
	}
}

// Device has a link whose network device went down or came up, and says whether it is to be fenced: when it went down only if others can do its work.
func (s *Session) Device(l *Link, up bool) (fence bool) {
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
