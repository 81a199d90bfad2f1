// Package env is what all studies share: the wheel and the plugins, where the processes run, how long each point takes, and the
// progress that the user sees.
package env

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gorail/gorail/bench/host"
	"gorail/gorail/doctor/peer"
	"gorail/gorail/door"
	"gorail/gorail/drive"
	"gorail/gorail/measure"
	"gorail/gorail/plugindir"
	"gorail/gorail/result"
	"gorail/gorail/side"
	"gorail/nixlapi"
)

// Env is the surroundings of a study. It is not safe for concurrent use.
type Env struct {
	Version string     // of gorail
	Wheel   string     // site-packages
	Plugins string     // the folder of all backends; "": GORAIL's own, and the wheel's
	Peer    door.Place // gorail doctor --listen; zero: all processes on this host
	There   string     // the peer's machine, in words
	Effort  Effort
	Repeats int           // 0: as Effort says
	Time    time.Duration // for a point; 0: as Effort says

	Lost     int // points of GORAIL that failed
	Progress *drive.Progress
}

// Effort is how much a study measures.
type Effort int

// The efforts. Smallest shows that a study works; its numbers say little.
const (
	Full Effort = iota
	Quick
	Smallest
)

// Pick returns the choice for the effort.
func Pick[T any](e *Env, full, quick, smallest T) T { return [...]T{full, quick, smallest}[e.Effort] }

// Find fills in the wheel. cuda chooses one of several.
func (e *Env) Find(wheel, cuda string) (err error) {
	if e.Wheel, err = plugindir.OneWheel(wheel, cuda); err != nil {
		return err
	}
	_, err = nixlapi.LibDir(e.Wheel)
	return err
}

// Reach checks that the peer, if there is one, answers and understands this program. It adds the port of gorail doctor --listen.
func (e *Env) Reach() error {
	if !e.Peer.Given() {
		return nil
	}
	if _, _, err := net.SplitHostPort(e.Peer.Addr); err != nil {
		e.Peer.Addr = net.JoinHostPort(e.Peer.Addr, peer.DefaultPort)
	}
	s, err := side.Dial(e.Peer)
	if err != nil {
		return fmt.Errorf("--peer: %w", err)
	}
	defer s.End(5 * time.Second)
	hello, err := s.Greet()
	e.There = hello.Machine
	return err
}

// PluginDir returns the folder that a backend is loaded from.
func (e *Env) PluginDir(backend string) string {
	return plugindir.FolderOf(backend, e.Plugins, e.Wheel)
}

// Has reports whether a backend's plugin is there.
func (e *Env) Has(backend string) bool {
	_, err := os.Stat(filepath.Join(e.PluginDir(backend), "libplugin_"+backend+".so"))
	return err == nil
}

// Describe fills in what a result says about machine and time.
func (e *Env) Describe(r *result.Result) {
	r.Version, r.When, r.Machine = result.Version, time.Now().UTC(), host.Machine()
	r.Versions = "gorail " + e.Version
}

// Config is a benchmark with the study's settings: one initiator and one target that polls, a notification with each transfer, bytes
// compared.
func (e *Env) Config(subjects []measure.Subject, points []measure.Point) *drive.Config {
	pace := measure.Pace{Warmup: 10, Time: cmp.Or(e.Time, Pick(e, 500*time.Millisecond, 200*time.Millisecond, 20*time.Millisecond)), Limit: Pick(e, time.Minute, 30*time.Second, 15*time.Second)}
	c := &drive.Config{Subjects: subjects, Points: points, Pace: pace, Repeats: cmp.Or(e.Repeats, Pick(e, 3, 2, 1)), Sync: "none", Target: "polls",
		Notify: true, Check: true, Connect: e.Peer, Wheel: e.Wheel, PluginDir: e.PluginDir}
	if slices.ContainsFunc(points, func(p measure.Point) bool { return p.Threads > p.Engines() }) {
		c.Sync = "rw"
	}
	return c
}

// Bench runs a benchmark. What fails goes to the result, and the samples that there are come back.
func (e *Env) Bench(ctx context.Context, c *drive.Config, r *result.Result) *measure.Run {
	c.Step = e.Progress.Step
	c.Warn = func(subject string, why error) {
		for _, s := range c.Subjects {
			if s.Title == subject && s.Backend == "GORAIL" {
				e.Lost++
			}
		}
		e.Fail(r, subject, why)
	}
	e.Progress.Expect(c.Steps())
	run := c.Run(ctx)
	if run.Versions != "" {
		r.Versions = "gorail " + e.Version + ", " + run.Versions
	}
	if run.Machine != "" && run.Machine != host.Machine() && !strings.Contains(r.Machine, "targets: ") {
		r.Machine += "; targets: " + run.Machine
	}
	for _, g := range run.GPUs {
		if !strings.Contains(r.Machine, g) {
			r.Machine += "; " + g
		}
	}
	return run
}

// Fail notes and shows what could not be measured. The same reason of the same subject is noted once.
func (e *Env) Fail(r *result.Result, what string, why error) {
	text := fmt.Sprintf("%s: %v", what, why)
	e.Progress.Say(text)
	if !slices.Contains(r.Failed, text) {
		r.Failed = append(r.Failed, text)
	}
}

// Setup describes the settings of Config.
func (e *Env) Setup(c *drive.Config) string {
	where := "on this host"
	if e.Peer.Given() {
		where = "here and at " + e.Peer.Addr
	}
	return fmt.Sprintf("an initiator and a target that polls, two processes %s, a notification with each transfer, bytes compared, %v a point, %d repeats", where, c.Pace.Time, c.Repeats)
}
