package engine

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"gorail/backend/session"
)

// idleMost is about the longest time between ticks of an engine without transfers. The time doubles up to it. At four ticks a second, 1,000 idle
// agents took two thirds of a core, with the other loops of that kind; at one in 4 s, 7 %.
const idleMost = 64 * time.Second

// owedEvery is the time between looks at peers that owe something that does not come: is their network cut? A look at all peers takes 3 us of each, and
// 6 with two links: of 1,000 it would take 15 to 31 % of a core, so of more than 100 only those that owed something at the last tick are looked at.
const owedEvery = 20 * time.Millisecond

// lookShare bounds what looks take of this process's time, and slows them down where it starves for processor time: the next one comes no sooner than so many times
// what the last one took, a tenfold owedEvery at most. The looks of 64 agents with 63 peers each took 7 % of two busy cores.
const lookShare = 16

// warnEvery is the number of sweeps from which one asks the rails for warnings: they took two thirds of the sweeps of 1,000 agents.
const warnEvery = 4

// Rare ticks of all engines of a process come together, counted from processBegan: a process that wakes costs more than a tick.
var processBegan = time.Now()

// roused is the time in which further control frames do not rouse the core's threads again: they sleep no longer than that after the first.
const roused = time.Second

// calmAfter is the time without transfers and frames before ticks become rarer. A peer with transfers to us pings more often than that: so its
// reports still tell that this process was stopped, which late ticks show.
const calmAfter = 10 * time.Second

func newStir() *stir {
	s := &stir{sweeper: make(chan struct{}, 1), closer: make(chan struct{}, 1), carrier: make(chan struct{}, 1)}
	s.last.Store(time.Now().UnixNano())
	return s
}

// transfers says that transfers begin. It does not wait.
func (s *stir) transfers() {
	s.peer()
	wake(s.closer)
	wake(s.carrier)
}

// peer says that a peer has sent a control frame. It does not wait. The peer may wait for what it has sent over a rail without waking us.
func (s *stir) peer() {
	now := time.Now().UnixNano()
	s.last.Store(now)
	if s.idle.Load() || now-s.roused.Load() > int64(roused) {
		wake(s.sweeper)
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func startSweeper(e *Engine) *sweeper {
	o := &e.opt
	every := min(250*time.Millisecond, max(time.Millisecond, min(o.XferTimeout, o.CancelTimeout, o.RailTimeout)/4))
	s := &sweeper{e, make(chan struct{}), make(chan struct{}), every}
	go s.run()
	return s
}

func (s *sweeper) stop() {
	close(s.quit)
	<-s.done
}

// run sweeps transfers, and looks for stuck links: more often while there are transfers, so that a rail that falls silent
// costs little more than rail_timeout, and less often while nothing happens.
func (s *sweeper) run() {
	defer close(s.done)
	look := min(s.every, max(time.Millisecond, s.e.opt.RailTimeout/8))
	timer := time.NewTimer(s.every)
	defer timer.Stop()
	swept, idle, gave := time.Now(), s.every, false
	var warned time.Time
	var watched session.Watched
	var due, looked time.Time
	var took time.Duration // the last look
	began := false
	for whole := true; ; { // whole: the tick is at due, and looks at all peers
		now := time.Now()
		if whole {
			due = now.Add(s.next(look, idle))
		}
		next, begun := due.Sub(now), (chan struct{})(nil)
		often := max(owedEvery, min(lookShare*took, 10*owedEvery))
		if whole = next < 3*often/2 || len(watched.Owing) == 0 && !began && !(watched.Closer && s.e.transfers.ActiveLen() > 0); !whole {
			next = often
		} else if watched.Closer && !began {
			begun = s.e.stir.closer // a token of transfers that have ended since costs one look
		}
		s.e.late.awaits(now, now.Add(next))
		timer.Reset(next)
		select {
		case <-s.quit:
			return
		case <-s.e.stir.sweeper:
			idle, gave, whole = s.every, false, true
			s.e.stir.roused.Store(time.Now().UnixNano())
			s.e.core.Rouse()
		case <-begun: // an application may begin and release thousands of short transfers a second
			whole, began = false, true
			if now := time.Now(); now.Sub(looked) >= often {
				looked = now
				s.e.initiators.Overdue(&watched)
				took = time.Since(now)
			}
		case now := <-timer.C:
			s.e.late.came(time.Now())
			looked, began = time.Now(), false
			if !whole {
				s.e.initiators.Overdue(&watched)
				took = time.Since(looked)
				continue
			}
			idle = min(2*idle, max(s.every, idleMost))
			watched = s.e.initiators.Watch()
			if took = time.Since(looked); watched.More || now.Sub(time.Unix(0, s.e.stir.last.Load())) < calmAfter {
				idle, gave = s.every, false
			}
			if idle >= giveBackAfter && !gave {
				gave = true
				giveBack()
			}
			if now.Sub(swept) < s.every {
				continue
			}
			swept = now
			if s.e.transfers.ActiveLen() > 0 {
				idle = s.every
				s.e.core.Rouse()
				s.e.transfers.Sweep()
			}
			if now.Sub(warned) >= warnEvery*s.every {
				warned = now
				s.e.rails.Warnings()
			}
		}
	}
}

// next is the time until the next tick: look while there are transfers.
func (s *sweeper) next(look, idle time.Duration) time.Duration {
	s.e.stir.idle.Store(idle > s.every) // before the question: a transfer that begins after it wakes us
	if s.e.transfers.ActiveLen() > 0 {
		s.e.stir.idle.Store(false)
		return look
	}
	if idle > s.every {
		return together(time.Since(processBegan), idle)
	}
	return idle
}

// together is the time until a multiple of every, of the time since the process began: half of every at least.
func together(since, every time.Duration) time.Duration {
	d := every - since%every
	if d < every/2 {
		d += every
	}
	return d
}

// lateness notes how late a ticker was: a process that is stopped, or starves for processor time, shows it.
type lateness struct {
	mu     sync.Mutex
	due    time.Time        // of the next tick; zero: none is awaited
	turned time.Time        // when worst[0] began
	worst  [2]time.Duration // in the last latePeriod, which goes on; in the one before
}

// latePeriod is half of the longest time for which a late tick is remembered.
const latePeriod = 10 * time.Second

// awaits says when the next tick is due. One that was due before, and did not come, counts: a process that was stopped may hear its peers first.
func (l *lateness) awaits(now, due time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(now)
	l.due = due
}

// came notes a tick.
func (l *lateness) came(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(now)
	l.due = time.Time{}
}

// note needs mu.
func (l *lateness) note(now time.Time) {
	if l.due.IsZero() {
		return
	}
	if now.Sub(l.turned) >= latePeriod {
		l.worst[1], l.worst[0], l.turned = l.worst[0], 0, now
	}
	l.worst[0] = max(l.worst[0], now.Sub(l.due))
}

// most is how late a tick was at most, or is now.
func (l *lateness) most(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	worst := max(l.worst[0], l.worst[1])
	if !l.due.IsZero() {
		worst = max(worst, now.Sub(l.due))
	}
	return worst
}

// vitals is what peers' snapshots say of this engine.
func (e *Engine) vitals() session.Vitals {
	return session.Vitals{Uptime: time.Since(e.started), Late: e.late.most(time.Now()), Transfers: e.transfers.Running()}
}

// An engine that has been idle for so long gives memory back. Go's runtime keeps what handshakes and transfers needed once: of 1,000 sessions that
// began together, 25 MiB for ever.
const (
	giveBackAfter = 16 * time.Second // between ticks
	worthGiving   = 4 << 20          // bytes beyond what the last time has left
)

// given is what Go's runtime, which all engines of a process share, had after it gave memory back last.
var given struct {
	sync.Mutex
	left uint64
}

// giveBack gives memory that is not in use to the kernel, if that may be much. It shrinks stacks, too.
func giveBack() {
	given.Lock()
	defer given.Unlock()
	if ownMemory() < given.left+worthGiving {
		return
	}
	for range 2 {
		runtime.GC() // each halves stacks
	}
	debug.FreeOSMemory()
	given.left = ownMemory()
}

// ownMemory is the memory that Go's runtime has for stacks and the heap, used or not.
func ownMemory() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.StackSys + m.HeapSys - m.HeapReleased
}
