package week

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gorail/gorail/live"
	"gorail/gorail/study/week/life"
	"gorail/internal/subprocess"
)

// quantity is what is sampled.
type quantity struct {
	name, unit string
	of         func(h life.Held, e engines) float64
}

// engines is what the engines of a process say.
type engines struct {
	open   int // sessions
	bytes  float64
	object float64
	gos    float64
}

var quantities = []quantity{
	{name: "resident memory", unit: "MiB", of: func(h life.Held, _ engines) float64 { return float64(h.Resident) / (1 << 20) }},
	{name: "memory of malloc", unit: "KiB", of: func(h life.Held, _ engines) float64 { return float64(h.C) / (1 << 10) }},
	{name: "Go heap of the plugin", unit: "KiB", of: func(_ life.Held, e engines) float64 { return e.bytes / (1 << 10) }},
	{name: "Go objects of the plugin", of: func(_ life.Held, e engines) float64 { return e.object }},
	{name: "goroutines of the plugin", of: func(_ life.Held, e engines) float64 { return e.gos }},
	{name: "descriptors", of: func(h life.Held, _ engines) float64 { return float64(h.FDs) }},
	{name: "threads", of: func(h life.Held, _ engines) float64 { return float64(h.Threads) }},
	{name: "mappings", of: func(h life.Held, _ engines) float64 { return float64(h.Maps) }},
	{name: "sessions", of: func(_ life.Held, e engines) float64 { return float64(e.open) }},
}

// folders are those in which files are counted. The first three are the study's own.
var folders = []struct{ name, what string }{
	{"sockets", "files in stats_socket"},
	{"local", "files in local_dir"},
	{"tmp", "files in TMPDIR"},
}

// shared is where programs of all users keep memory; only names of ours count.
const shared = "/dev/shm"

// sample is what there was after a round.
type sample struct {
	work   uint64 // transfers until then
	values map[string]float64
	settle time.Duration // until the sessions had ended
	rested bool
}

// stay is how many sessions the processes keep: the two agents that stay, in both directions.
const stay = 2

// patience is for sessions to end after their peers have been removed or have died.
const patience = time.Minute

// look waits until the sessions of the round have ended, and takes a sample.
func (x *run) look(ctx context.Context) (s sample, err error) {
	s = sample{work: x.done.Transfers, values: map[string]float64{}}
	began := time.Now()
	for _, l := range []*long{x.hub, x.partner} {
		h, err := subprocess.Call[life.Held](l.Client, "Hold", life.WantArgs{Notifs: l.notifs}, limit)
		if err != nil {
			return s, err
		}
		if h.NotifsMissingOf > 0 {
			return s, fmt.Errorf("%s has %d notifications, and %d were sent", l.name, h.Notifs, h.NotifsMissingOf)
		}
		var e engines
		for {
			if e, err = x.ask(ctx, l); err != nil {
				return s, fmt.Errorf("%s: %w", l.name, err)
			}
			if e.open <= stay || time.Since(began) > patience {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		// What ends may hold a descriptor for a moment.
		for range 20 {
			if h, err = subprocess.Call[life.Held](l.Client, "Hold", life.WantArgs{Notifs: l.notifs}, limit); err != nil {
				return s, err
			}
			if e, err = x.ask(ctx, l); err != nil {
				return s, err
			}
			if !x.more(l.name, h, e) {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		for _, q := range quantities {
			s.values[l.name+": "+q.name] = q.of(h, e)
		}
	}
	for _, f := range folders {
		list, err := os.ReadDir(filepath.Join(x.dir, f.name))
		if err != nil {
			return s, err
		}
		s.values[f.what] = float64(len(list))
	}
	list, _ := os.ReadDir(shared)
	n := 0
	for _, f := range list {
		if strings.HasPrefix(f.Name(), "gorail") {
			n++
		}
	}
	s.values["files in "+shared] = float64(n)
	s.settle = time.Since(began)
	return s, nil
}

// more reports that a process holds more descriptors or goroutines than at the last sample.
func (x *run) more(name string, h life.Held, e engines) bool {
	if len(x.samples) == 0 {
		return false
	}
	last := x.samples[len(x.samples)-1].values
	return float64(h.FDs) > last[name+": descriptors"] || e.gos > last[name+": goroutines of the plugin"]
}

// ask asks the engines of a process, until they answer: a host may be busy.
func (x *run) ask(ctx context.Context, l *long) (e engines, err error) {
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if e, err = x.askOnce(ctx, l); err == nil || ctx.Err() != nil || time.Since(began) > patience {
			return e, err
		}
	}
}

func (x *run) askOnce(ctx context.Context, l *long) (e engines, err error) {
	list, err := live.Source{Folder: filepath.Join(x.dir, "sockets")}.Read(ctx)
	if err != nil {
		return e, err
	}
	found := 0
	for _, g := range list {
		if g.Live == nil || g.PID != l.Pid() {
			continue
		}
		for _, p := range g.Peers {
			if !p.Ended() {
				e.open++
			}
		}
		if found++; found > 1 {
			continue // all engines of a process share the runtime
		}
		m, err := live.Memory(ctx, g.Socket)
		if err != nil {
			return e, err
		}
		e.bytes, e.object, e.gos = float64(m.Bytes), float64(m.Objects), float64(m.Goroutines)
	}
	if found < len(l.peers) {
		return e, errors.New("its engines do not answer")
	}
	return e, nil
}
