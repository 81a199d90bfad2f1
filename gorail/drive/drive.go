package drive

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gorail/gorail/bench/host"
	"gorail/gorail/door"
	"gorail/gorail/measure"
	"gorail/gorail/side"
)

// Config selects the subjects and points of a benchmark and how they are measured.
type Config struct {
	Setup
	Subjects  []measure.Subject // backends, then limits
	Points    []measure.Point
	Pace      measure.Pace
	Repeats   int
	Prog      bool       // progress thread
	Sync      string     // none, strict, rw
	Target    string     // polls, naps, sleeps: the target's behaviour during transfers
	Notify    bool       // a notification with each transfer
	Check     bool       // compare the bytes
	Connect   door.Place // the target's gorail bench --listen; zero: both processes on this host
	Wheel     string
	PluginDir func(backend string) string
	Theirs    map[string]string // parameters of the target's backend, above those of the subject

	Step func(what string)               // called before each point
	Warn func(subject string, why error) // called after a failure
}

// Setup is what memory the processes have. The zero value is private pages.
type Setup struct {
	Memory       string // one of measure.Memories, of subjects without their own; "": dram
	TargetMemory string // of the target; "": as the initiator
	GPUs         []int  // of the initiator, then of the target; one: of both; none: GPU 0
}

// Limited reports whether limits can be measured beside the backends: they copy host memory.
func (s *Setup) Limited() bool { return !measure.OnGPU(s.Memory) && !measure.OnGPU(s.TargetMemory) }

// Steps returns the number of calls of Step.
func (c *Config) Steps() int {
	n := 0
	for _, s := range c.Subjects {
		n += c.Repeats * len(c.points(s))
	}
	return n
}

// What a turn takes beside its points, and a point beside its time: start and end of two processes, filling and comparing memory.
const (
	startTime  = 1500 * time.Millisecond
	pointTime  = 30 * time.Millisecond
	fillPerGiB = 2 * time.Second
)

// Estimate is about how long Run takes; 0: it depends on Pace.Count.
func (c *Config) Estimate() (sum time.Duration) {
	if c.Pace.Count > 0 {
		return 0
	}
	for _, s := range c.Subjects {
		if s.Backend != "" {
			sum += startTime
		}
		for _, p := range c.points(s) {
			sum += c.Pace.Time + pointTime + time.Duration(float64(p.Room())/(1<<30)*float64(fillPerGiB))
		}
	}
	return sum * time.Duration(c.Repeats)
}

// points returns the points that can be measured with a subject.
func (c *Config) points(s measure.Subject) []measure.Point {
	if s.Backend != "" {
		return c.Points
	}
	if !c.Limited() {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Points), func(p measure.Point) bool { return !side.Runs(p) })
}

// Run measures all points. If it is cancelled, it returns the samples so far. Machine is that of targets on another host.
func (c *Config) Run(ctx context.Context) *measure.Run {
	r := &measure.Run{Repeats: c.Repeats}
	for _, s := range c.Subjects {
		if s.Backend == "" {
			r.Limits = append(r.Limits, s.Title)
		} else {
			r.Subjects = append(r.Subjects, s.Title)
		}
	}
	for repeat := range c.Repeats {
		for i := range c.Subjects {
			// The order rotates: the first subject may find the machine cold.
			t := &turn{Config: c, subject: c.Subjects[(i+repeat)%len(c.Subjects)], repeat: repeat, out: r}
			t.run(ctx)
		}
	}
	return r
}

// turn is a subject's turn in one repeat.
type turn struct {
	*Config
	subject  measure.Subject
	repeat   int
	ini, tgt *member // nil before start
	info     measure.Pair
	out      *measure.Run
}

// member is one process.
type member struct {
	*side.Side
	peer side.Peer
	gpu  int
}

// members are the processes that have been started.
func (t *turn) members() []*member {
	return slices.DeleteFunc([]*member{t.ini, t.tgt}, func(m *member) bool { return m == nil })
}

func (t *turn) run(ctx context.Context) {
	before, first := host.Look(), len(t.out.Samples)
	defer func() {
		t.end(ctx) // the time of ended processes is known
		if busy := before.Others(); busy > host.Limit {
			for i := range t.out.Samples[first:] {
				t.out.Samples[first+i].Busy = busy
			}
		}
	}()
	for i, p := range t.points(t.subject) {
		if ctx.Err() != nil {
			return
		}
		t.Step(fmt.Sprintf("%s %s %s", t.subject.Title, p.Op, p.Shape()))
		s, err := t.point(p, uint64(i))
		s.Subject, s.Repeat, s.Point = t.subject.Title, t.repeat, p
		if err == nil {
			t.out.Samples = append(t.out.Samples, s)
			continue
		}
		if Interrupted(ctx) {
			return
		}
		s.Failed = err.Error()
		t.out.Samples = append(t.out.Samples, s)
		ini, fresh := t.ini, t.info.Subject == ""
		t.end(ctx) // later results of failed processes would be useless
		if ini != nil {
			for _, line := range ini.Warnings() { // the error of NIXL has no cause
				err = fmt.Errorf("%w; its log: %s", err, line)
			}
		}
		t.Warn(t.subject.Title, fmt.Errorf("%s %s: %w", p.Op, p.Shape(), err))
		if fresh {
			return // the processes could not be started
		}
	}
}

// interruptTime is how long a Control-C may take to reach us after it has ended our processes.
const interruptTime = 100 * time.Millisecond

// Interrupted reports, after a process has failed, whether that was a Control-C: it ends the processes, too.
func Interrupted(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	case <-time.After(interruptTime):
		return false
	}
}

// end ends the processes.
func (t *turn) end(ctx context.Context) {
	if t.info.First != 0 {
		t.out.Pairs = append(t.out.Pairs, t.info)
	}
	for _, m := range t.members() {
		if err := m.Close(); err != nil && ctx.Err() == nil { // a Control-C ends them, too
			t.Warn(t.subject.Title, fmt.Errorf("at the end: %w", err))
		}
	}
	t.ini, t.tgt, t.info = nil, nil, measure.Pair{}
}

// commandLimit is the deadline of commands that measure nothing.
const commandLimit = time.Minute
