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
	ProbeTime    = time.Second      // at least: see Failover.patience
	MostProbe    = 30 * time.Second // at most
)

// slowAnswer is how many times as long as the peer's last answer on the control channel a probe may take. 40 agents in 16 processes that all met on two cores
// answered Hellos after seconds: with ProbeTime alone a third of their links was fenced, each for a handshake and two endpoints more, which took 35 ms of
// processor time a pair instead of 17.
const slowAnswer = 8

// LinkState is the failover state of one link. Guarded by the lock of its session.
type LinkState struct {
	OwnRail        int    // index of our rail; of its first one, if it is a shard of a device
	Up             bool   // the core has the link
	Epoch          uint32 // incremented with every endpoint
	Phase          Phase
	Since          time.Time // start of the phase
	Proved         bool      // messages have gone both ways since the session began; on a target: one has come in
	UnprovedLogged bool      // the log says that the link is not proved
	Closed         bool      // the last fence opens no endpoint: see Failover.Fence
	DownLogged     bool      // the log says that the rail is down since the last fence

	Pause time.Duration // before the next try
	good  uint64        // completions without error at the last failure
	seen  uint64        // completions at the last call of Watch
	moved time.Time     // last time with progress, or with nothing in flight before
	done  time.Time     // last time with progress
	busy  bool          // operations were in flight at the last call of Watch
	vain  int           // probes without an answer since the last one that was answered
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
func (l *LinkState) Prove() { l.Proved, l.UnprovedLogged, l.vain = true, false, 0 }

// Failover holds the links of one session, and decides what becomes of one that fails. The session calls all methods with its lock held.
type Failover struct {
	Links   []*LinkState
	Timeout time.Duration    // option rail_timeout
	Now     func() time.Time // nil: time.Now
	Answer  time.Duration    // how long the peer took for its last answer on the control channel: its Welcome, or that to a FENCE

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

// FirstProbesDone returns true if one link is proved and no other still waits for its first probe.
func (s *Failover) FirstProbesDone() bool {
	return s.AnyProved() && !s.any(nil, func(o *LinkState) bool { return !o.Proved && o.Phase == Probing && o.Epoch == 0 })
}

// Count is a link's number of completions and of operations in flight.
type Count struct{ Completions, Errors, InFlight uint64 }

// Actions is what a session does about one of its links. It does so in the order of the fields. The zero value: nothing.
type Actions struct {
	Pause  time.Duration // the fence is decided after it
	GiveUp bool          // the session ends: no link of it can be used

	LogDown  bool // the log says that other rails carry the work,
	LogAlone bool // or that none does
	Abandon  bool // transfers of the link that have failed end: nothing older lands. The link keeps its work until a link works
	Rebind   bool // the link continues with its new endpoint, with a probe unless it is proved. If it cannot, Opened decides again
	HandBack bool // the link is not used for now: its work goes back
	HandOver bool // the work of all links that do not work goes to those that do
	Drain    bool // a shared endpoint: the link stops, and waits until what it has posted has ended
	Fence    bool // our endpoint is closed, and the peer is asked to close its own
	First    bool // with Fence or Drain: a failure begins. It is counted
	Unproved bool // with Fence: the log says that the link was not established while others were
	Open     bool // with Fence: another endpoint of ours is opened, and the peer is asked for one
	Last     bool // with Open: the session ends if it does not open
	Suspect  bool // with Fence: the control connection may use the same address

	Connect bool // the new endpoints of both sides are connected; then Opened decides
	Retry   bool // a link that backs off is tried again after After: by a fence if Refence, because it has no endpoint, else by a probe
	Refence bool
	After   time.Duration
}

// Failed handles a link that reported an error. If others work, the link is fenced at once, so that others take its work, and backs off
// after the fence. If no other works, the link is fenced at once on its first endpoint and after progress. Without progress since the last
// failure the pause doubles: otherwise a link that never recovers, with notifications waiting for it, would keep a core busy. urgent: a
// revocation waits for the fence, so there is no pause.
func (s *Failover) Failed(l *LinkState, n Count, urgent, shared bool) Actions {
	others, good := s.OthersWork(l), n.Completions-n.Errors
	switch {
	case good > l.good+1 || l.Epoch == 0: // one completion may be a probe, and is no progress
		l.good, l.Pause = good, 0
	case others:
		l.GrowBackoff()
	default:
		l.Pause = min(max(2*l.Pause, FirstPause), MostPause)
	}
	if !others && !urgent && l.Pause > 0 {
		return Actions{Pause: l.Pause}
	}
	return s.Fence(l, shared)
}

// Fence handles a link that must not go on with its endpoint. If another link works, the fence closes both endpoints and opens none: others
// have the link's work after one round trip, and opening, which on RoCE may wait a second for the kernel to find the neighbour, delays no
// byte. The next fence opens. A shared endpoint cannot be fenced: it drains.
func (s *Failover) Fence(l *LinkState, shared bool) (a Actions) {
	if l.Phase == Fencing || l.Phase == Draining || !l.Up {
		return a
	}
	return s.fence(l, shared)
}

func (s *Failover) fence(l *LinkState, shared bool) (a Actions) {
	a.First = !l.Closed // else both ends are closed: there is nothing to close, and nothing to report
	if a.First {
		l.DownLogged = false
	}
	if shared {
		a.Drain = true
		l.Enter(Draining, s.now())
		return a
	}
	a.Fence = true
	l.Closed = a.First && l.Phase == Working && s.OthersWork(l)
	a.Open, a.Last = !l.Closed, !s.AnyUsable(l)
	a.Unproved = s.reportUnproved(l)
	a.Suspect = a.First && !s.SiblingWorks(l)
	l.Enter(Fencing, s.now())
	return a
}

// reportUnproved returns true, once, if a fenced link was not established while others were.
func (s *Failover) reportUnproved(l *LinkState) bool {
	if l.Proved || l.UnprovedLogged || !s.OthersWork(l) {
		return false
	}
	l.UnprovedLogged = true
	return true
}

// Answered handles the peer's answer to a FENCE: both old endpoints are closed, and nothing older lands any more. away: our interface has
// lost its address, so another endpoint would not open. Who follows the addresses comes back to the link.
func (s *Failover) Answered(l *LinkState, away bool) (a Actions) {
	switch {
	case l.Closed && away:
		l.Enter(BackingOff, s.now())
	case l.Closed:
		a = s.fence(l, false) // the next one, which opens
	default:
		a.Connect = true
	}
	if l.Up { // else the link begins
		a.HandOver = s.OthersWork(l)
		a.Abandon, a.LogDown = !a.HandOver, a.HandOver && !l.DownLogged
		l.DownLogged = l.DownLogged || a.LogDown
	}
	return a
}

// Opened handles a quiet link whose new endpoint is connected, or which cannot be used for now: err. Others may do its work, or work later.
func (s *Failover) Opened(l *LinkState, err error, away bool) (a Actions) {
	others := s.OthersWork(l)
	switch {
	case !others && err == nil:
		return Actions{Rebind: true, HandOver: l.Proved}
	case !others && !away && !s.AnyUsable(l): // of one that is away the follower of addresses decides
		return Actions{GiveUp: true}
	}
	a = Actions{HandBack: true, LogAlone: !others, LogDown: others && (err != nil || !l.DownLogged), Retry: true, Refence: !others || err != nil}
	l.DownLogged = l.DownLogged || a.LogAlone || a.LogDown
	l.Enter(BackingOff, s.now())
	switch {
	case !others:
		a.After = max(l.Pause, FirstBackoff)
	case err != nil:
		l.GrowBackoff()
		fallthrough
	default:
		a.After = l.Pause
	}
	return a
}

// Renewed notes that a link continues with another endpoint: it works, or is probed first.
func (s *Failover) Renewed(l *LinkState) {
	if l.Proved {
		l.Enter(Working, s.now())
		l.moved, l.busy = s.now(), false
	} else {
		l.Enter(Probing, s.now())
	}
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

// Stuck is a link to fence.
type Stuck struct {
	Link int
	Why  string
}

// patience is the time of a probe. A peer that starves for processor time answers late, on all its links: another fence would only take more of that time from
// both. So a peer that answers slowly gets more, and each probe in vain doubles it.
func (s *Failover) patience(l *LinkState) time.Duration {
	return min(max(ProbeTime<<min(l.vain, 5), slowAnswer*s.Answer), MostProbe)
}

// Watch finds stuck links: a probe without an answer, and a link without progress while another link is healthy: it makes
// progress, or it is idle over another of our rails. An idle link over the same rail has the same path, and says nothing. If none is
// healthy, the cause may be the peer as a whole. The other links of a silent rail are stuck with it, idle ones too: they would only
// take its work and wait again. counts are those of the links, at least of those that work.
func (s *Failover) Watch(counts []Count) (list []Stuck) {
	now := s.now()
	unseen := max(0, now.Sub(s.looked)-s.Timeout/2) // nobody looked: this process was stopped, or starves
	s.looked = now
	recent := func(t time.Time) bool { return now.Sub(t) <= s.Timeout }
	for i, l := range s.Links {
		if l.Phase == Probing && l.Since.Before(now) {
			l.Since = earlier(now, l.Since.Add(unseen))
		}
		if l.Phase != Working {
			continue
		}
		n := counts[i]
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
	stuck := map[*LinkState]bool{}
	works := func(o *LinkState) bool { return o.Phase == Working && !stuck[o] }
	for i, l := range s.Links {
		why := ""
		switch {
		case l.Phase == Probing && now.Sub(l.Since) > s.patience(l) && (s.any(l, works) || s.AnyProved()): // else connect_timeout ends the session
			l.vain++
			l.GrowBackoff()
			why = NoAnswer
		case l.Phase == Working && !recent(l.moved) && s.any(l, func(o *LinkState) bool {
			return works(o) && (recent(o.done) || o.OwnRail != l.OwnRail && recent(o.moved))
		}):
			why = NoMove
		case l.Phase == Working && slices.Contains(silent, l.OwnRail):
			why = NoPath
		}
		if why != "" {
			stuck[l] = true
			list = append(list, Stuck{i, why})
		}
	}
	return list
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
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
