// Package drive runs a benchmark: every subject takes its turn with a pair of processes of its own, several times over, so that all
// of them meet the same moods of a machine and none runs beside another.
package drive

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gorail/cmd/gorail/measure"
	"gorail/cmd/gorail/side"
)

// Config is what is measured, and how.
type Config struct {
	Subjects  []measure.Subject // backends, then limits
	Points    []measure.Point
	Pace      measure.Pace
	Repeats   int
	Prog      bool   // progress thread
	Sync      string // none, strict, rw
	Target    string // polls, naps, sleeps: what it does while transfers run
	Notify    bool   // a notification with each transfer
	Check     bool   // compare the bytes
	Connect   string // host:port of the target's gorail bench --listen; "": both processes here
	Wheel     string
	PluginDir func(backend string) string

	Step func(what string)               // called before each point
	Warn func(subject string, why error) // called when something failed
}

// Steps is how often Step is called.
func (c *Config) Steps() int {
	n := 0
	for _, s := range c.Subjects {
		n += c.Repeats * len(c.points(s))
	}
	return n
}

// points are those that a subject can be measured at.
func (c *Config) points(s measure.Subject) []measure.Point {
	if s.Backend != "" {
		return c.Points
	}
	return slices.DeleteFunc(slices.Clone(c.Points), func(p measure.Point) bool { return !side.Runs(p) })
}

// Run measures all, and gives what there is when it is cancelled.
func (c *Config) Run(ctx context.Context) (samples []measure.Sample, pairs []measure.Pair, versions string) {
	for repeat := range c.Repeats {
		for i := range c.Subjects {
			// Who comes first changes: the first may find the machine cold.
			t := &turn{Config: c, subject: c.Subjects[(i+repeat)%len(c.Subjects)], repeat: repeat}
			t.run(ctx)
			samples, pairs = append(samples, t.samples...), append(pairs, t.pairs...)
			if t.versions != "" {
				versions = t.versions
			}
		}
	}
	return samples, pairs, versions
}

// turn is a subject's turn in one repeat.
type turn struct {
	*Config
	subject  measure.Subject
	repeat   int
	ini, tgt *side.Side // nil: not alive
	info     measure.Pair

	samples  []measure.Sample
	pairs    []measure.Pair
	versions string
}

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
			t.Warn(t.subject.Title, fmt.Errorf("%s %s: %w", p.Op, p.Shape(), err))
			fresh := t.ini == nil || t.info.Subject == ""
			t.end() // what a failed pair would say next is worth nothing
			if fresh {
				t.samples = append(t.samples, s)
				return // it could not even be made
			}
		}
		t.samples = append(t.samples, s)
	}
}

// end lets both processes go.
func (t *turn) end() {
	if t.ini == nil {
		return
	}
	t.grown()
	for _, s := range []*side.Side{t.ini, t.tgt} {
		if err := s.Close(); err != nil {
			t.Warn(t.subject.Title, fmt.Errorf("at the end: %w", err))
		}
	}
	t.ini, t.tgt, t.info = nil, nil, measure.Pair{}
}

// grown keeps what the pair grew to.
func (t *turn) grown() {
	if t.subject.Backend == "" || t.info.First == 0 {
		return
	}
	for i, s := range []*side.Side{t.ini, t.tgt} {
		st, err := side.Call[side.Stats](s, "Stats", side.None{}, short)
		if err != nil {
			return
		}
		t.info.Threads[i], t.info.MiB[i] = st.Threads, st.MiB
	}
	t.pairs = append(t.pairs, t.info)
}

// short bounds commands that take no time of their own.
const short = time.Minute
