package drive

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

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
	Target    string     // polls, naps, sleeps: the targets' behaviour during transfers
	Notify    bool       // a notification with each transfer
	Check     bool       // compare the bytes
	Connect   door.Place // the targets' gorail bench --listen; zero: all processes on this host
	Wheel     string
	PluginDir func(backend string) string
	Theirs    map[string]string // parameters of the targets' backend, above those of the subject

	Step func(what string)               // called before each point
	Warn func(subject string, why error) // called after a failure
}

// Setup is which processes there are, and what memory they have. The zero value is one initiator and one target with private pages.
type Setup struct {
	Scheme              string // one of scheme.Names; "": pairwise
	Initiators, Targets int    // 0: one
	Memory              string // one of measure.Memories, of subjects without their own; "": dram
	TargetMemory        string // of the targets; "": as the initiators
	GPUs                []int  // of the initiators, then of the targets, from the first again when they are too few; none: GPU 0

	Spawn func(target bool) (*side.Side, error) // starts a process on this host; nil: side.Spawn
}

// Limited reports whether limits can be measured beside the backends: they copy host memory between one initiator and one target.
func (s *Setup) Limited() bool {
	return max(s.Initiators, s.Targets) <= 1 && !measure.OnGPU(s.Memory) && !measure.OnGPU(s.TargetMemory)
}

// Steps returns the number of calls of Step.
func (c *Config) Steps() int {
	n := 0
	for _, s := range c.Subjects {
		n += c.Repeats * len(c.points(s))
	}
	return n
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
	subject measure.Subject
	repeat  int
	group   // the processes; none before start
	info    measure.Pair
	out     *measure.Run
}

// group is the processes of a turn and the traffic between them.
type group struct {
	inis, tgts []*member
	edges      []edge
}

// member is one process.
type member struct {
	*side.Side
	peer side.Peer
	gpu  int
}

func (g *group) all() []*member { return slices.Concat(g.inis, g.tgts) }

func (t *turn) run(ctx context.Context) {
	defer t.end()
	for i, p := range t.points(t.subject) {
		if ctx.Err() != nil {
			return
		}
		t.Step(fmt.Sprintf("%s %s %s", t.subject.Title, p.Op, p.Shape()))
		s, err := t.point(p, uint64(i))
		s.Subject, s.Repeat, s.Point = t.subject.Title, t.repeat, p
		if err != nil {
			s.Failed = err.Error()
			inis, said := t.inis, warnings(t.inis)
			fresh := t.info.Subject == ""
			t.end()             // later results of failed processes would be useless
			if len(said) == 0 { // their output may not have been read to its end
				said = warnings(inis)
			}
			for _, line := range said {
				err = fmt.Errorf("%w; its log: %s", err, line)
			}
			t.Warn(t.subject.Title, fmt.Errorf("%s %s: %w", p.Op, p.Shape(), err))
			if fresh {
				t.out.Samples = append(t.out.Samples, s)
				return // the processes could not be started
			}
		}
		t.out.Samples = append(t.out.Samples, s)
	}
}

// warnings are what processes have logged. The error of NIXL has no cause.
func warnings(list []*member) (out []string) {
	for _, m := range list {
		out = append(out, m.Warnings()...)
	}
	return out
}

// end ends all processes.
func (t *turn) end() {
	if len(t.all()) == 0 {
		return
	}
	t.recordPeak()
	for _, m := range t.all() {
		if err := m.Close(); err != nil {
			t.Warn(t.subject.Title, fmt.Errorf("at the end: %w", err))
		}
	}
	t.group, t.info = group{}, measure.Pair{}
}

// recordPeak records the first pair's largest number of threads and memory.
func (t *turn) recordPeak() {
	if t.subject.Backend == "" || t.info.First == 0 {
		return
	}
	for i, m := range []*member{t.inis[0], t.tgts[0]} {
		st, err := side.Call[side.Stats](m.Side, "Stats", side.None{}, commandLimit)
		if err != nil {
			return
		}
		t.info.Threads[i], t.info.MiB[i] = st.Threads, st.MiB
	}
	t.out.Pairs = append(t.out.Pairs, t.info)
}

// each calls f for all members at once, and returns the first error.
func each(list []*member, f func(i int, m *member) error) error {
	errs := make([]error, len(list))
	var all sync.WaitGroup
	for i, m := range list {
		all.Go(func() { errs[i] = f(i, m) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// commandLimit is the deadline of commands that measure nothing.
const commandLimit = time.Minute
