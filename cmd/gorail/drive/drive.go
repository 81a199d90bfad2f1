// Package drive runs a benchmark. Each subject in turn gets its own pair of processes, several times per run. All
// subjects thus meet the same conditions of the machine, and no two run at the same time.
package drive

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gorail/cmd/gorail/measure"
	"gorail/cmd/gorail/side"
)

// Config selects the subjects and points of a benchmark and how they are measured.
type Config struct {
	Subjects  []measure.Subject // backends, then limits
	Points    []measure.Point
	Pace      measure.Pace
	Repeats   int
	Memory    string // one of measure.Memories, for subjects without their own
	Prog      bool   // progress thread
	Sync      string // none, strict, rw
	Target    string // polls, naps, sleeps: the target's behaviour during transfers
	Notify    bool   // a notification with each transfer
	Check     bool   // compare the bytes
	Connect   string // host:port of the target's gorail bench --listen; "": both processes on this host
	Wheel     string
	PluginDir func(backend string) string
	Theirs    map[string]string // parameters of the target's backend, above those of the subject

	Step func(what string)               // called before each point
	Warn func(subject string, why error) // called after a failure
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
	return slices.DeleteFunc(slices.Clone(c.Points), func(p measure.Point) bool { return !side.Runs(p) })
}

// Run measures all points. If it is cancelled, it returns the samples so far.
func (c *Config) Run(ctx context.Context) (samples []measure.Sample, pairs []measure.Pair, versions string) {
	for repeat := range c.Repeats {
		for i := range c.Subjects {
			// The order rotates: the first subject may find the machine cold.
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
	ini, tgt *side.Side // nil: no process
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
			if t.ini != nil {
				for _, line := range t.ini.Warnings() { // the error of NIXL has no cause
					err = fmt.Errorf("%w; its log: %s", err, line)
				}
			}
			t.Warn(t.subject.Title, fmt.Errorf("%s %s: %w", p.Op, p.Shape(), err))
			fresh := t.ini == nil || t.info.Subject == ""
			t.end() // later results of a failed pair would be useless
			if fresh {
				t.samples = append(t.samples, s)
				return // the pair could not be started
			}
		}
		t.samples = append(t.samples, s)
	}
}

// end ends both processes.
func (t *turn) end() {
	if t.ini == nil {
		return
	}
	t.recordPeak()
	for _, s := range []*side.Side{t.ini, t.tgt} {
		if err := s.Close(); err != nil {
			t.Warn(t.subject.Title, fmt.Errorf("at the end: %w", err))
		}
	}
	t.ini, t.tgt, t.info = nil, nil, measure.Pair{}
}

// recordPeak records the pair's largest number of threads and memory.
func (t *turn) recordPeak() {
	if t.subject.Backend == "" || t.info.First == 0 {
		return
	}
	for i, s := range []*side.Side{t.ini, t.tgt} {
		st, err := side.Call[side.Stats](s, "Stats", side.None{}, commandLimit)
		if err != nil {
			return
		}
		t.info.Threads[i], t.info.MiB[i] = st.Threads, st.MiB
	}
	t.pairs = append(t.pairs, t.info)
}

// commandLimit is the deadline of commands that measure nothing.
const commandLimit = time.Minute
