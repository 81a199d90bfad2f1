// Package peers is the study of many peers: one hub, and agents in a few processes.
package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"gorail/gorail/cli"
	"gorail/gorail/drive"
	"gorail/gorail/measure"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/peers/crowd"
	"gorail/internal/subprocess"
)

// Options are the study's own flags.
type Options struct {
	Peers     int // 0: as the effort says
	Processes int // of peers
	Compare   []string
	Params    []string // NAME=VALUE of GORAIL
}

// most is how many peers a hub may have here, and writers how many write to it at once.
const (
	most    = 1000
	writers = 64
)

// limit is for one command: UCX takes minutes for a hundred peers.
const limit = 5 * time.Minute

// run is one backend.
type run struct {
	backend    string
	hub        *subprocess.Client
	leaves     []*subprocess.Client
	all        []crowd.Peer
	hubPeer    crowd.Peer
	versions   string
	shared     bool // by shared memory
	writers    []writer
	plain      []writer // the same with copies without NIXL
	meet, wave crowd.MeetOut
	start      time.Duration // of all processes of peers, until their agents are there
	before     held
	with       held
	failed     error
}

// held is what the hub holds.
type held struct {
	fds    int
	memory int64
}

// Run measures, and fills in the result.
func Run(ctx context.Context, e *env.Env, o Options, r *result.Result) error {
	if o.Peers == 0 {
		o.Peers = env.Pick(e, most, 100, 8)
	}
	if o.Peers < 2 || o.Peers > most || o.Processes < 1 || o.Processes > o.Peers {
		return cli.Usage("--peers %d --processes %d: want 2 to %d peers, and at least one in each process", o.Peers, o.Processes, most)
	}
	params := map[string]string{}
	for _, p := range o.Params {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return cli.Usage("--param %q: write NAME=VALUE", p)
		}
		params[name] = value
	}
	r.Checks = append(r.Checks, env.Quiet())
	r.Setup = fmt.Sprintf("a hub and %d peers in %d processes of this host; progress threads on; GORAIL with %s", o.Peers, o.Processes, strings.Join(append([]string{"its defaults"}, o.Params...), " "))
	var runs []*run
	backends := append([]string{"GORAIL"}, o.Compare...)
	e.Progress.Expect(4 * len(backends))
	for _, b := range backends {
		if !e.Has(b) {
			return cli.Usage("no backend %s: no plugin of that name in %s", b, e.PluginDir(b))
		}
		if ctx.Err() != nil {
			break
		}
		p := params
		x := &run{backend: b, shared: b == "GORAIL" && (p["provider"] == "" || p["provider"] == "sm")}
		if b != "GORAIL" {
			p = map[string]string{}
		}
		if x.failed = x.measure(ctx, e, o, p); x.failed != nil && !drive.Interrupted(ctx) {
			e.Fail(r, b, x.failed)
			if b == "GORAIL" {
				e.Lost++
			}
		}
		if x.versions != "" {
			r.Versions = "gorail " + e.Version + ", " + x.versions
		}
		runs = append(runs, x)
	}
	fill(o, runs, r)
	return ctx.Err()
}

// measure is one backend: connect, hold, write, restart.
func (x *run) measure(ctx context.Context, e *env.Env, o Options, params map[string]string) (err error) {
	defer x.close()
	e.Progress.Step(x.backend + ": agents")
	open := func(names []string, slots int) (*subprocess.Client, []crowd.Peer, error) {
		c, err := subprocess.Start(subprocess.Options{Args: []string{crowd.Command}}, crowd.Service)
		if err != nil {
			return nil, nil, err
		}
		in := crowd.OpenArgs{Backend: x.backend, Params: params, Wheel: e.Wheel, PluginDir: e.PluginDir(x.backend), Names: names, Slots: slots}
		out, err := subprocess.Call[crowd.OpenOut](c, "Open", in, limit)
		x.versions = out.Versions
		return c, out.Peers, err
	}
	var list []crowd.Peer
	if x.hub, list, err = open([]string{"hub"}, writers); err != nil {
		return err
	}
	x.hubPeer = list[0]
	leaves := func() error {
		began := measure.Now()
		x.leaves, x.all = make([]*subprocess.Client, o.Processes), nil
		lists, errs := make([][]crowd.Peer, o.Processes), make([]error, o.Processes)
		var wg sync.WaitGroup
		for i := range o.Processes {
			var names []string
			for k := i; k < o.Peers; k += o.Processes {
				names = append(names, fmt.Sprintf("peer-%d", k))
			}
			wg.Go(func() { x.leaves[i], lists[i], errs[i] = open(names, 1) })
		}
		wg.Wait()
		x.start = measure.Now() - began
		x.all = slices.Concat(lists...)
		return errors.Join(errs...)
	}
	if err = leaves(); err != nil {
		return err
	}
	x.before = x.holds()
	e.Progress.Step(x.backend + ": connect")
	if x.meet, err = x.meets(); err != nil || ctx.Err() != nil {
		return err
	}
	x.with = x.holds()
	e.Progress.Step(x.backend + ": writers")
	if err = x.writes(e); err != nil || ctx.Err() != nil {
		return err
	}
	e.Progress.Step(x.backend + ": restarts")
	for _, c := range x.leaves {
		c.Kill()
	}
	if err = leaves(); err != nil {
		return err
	}
	x.wave, err = x.meets()
	return err
}

// meets lets the hub meet all peers.
func (x *run) meets() (crowd.MeetOut, error) {
	return subprocess.Call[crowd.MeetOut](x.hub, "Meet", crowd.MeetArgs{Peers: x.all, Limit: limit - 10*time.Second}, limit)
}

// writes lets up to 64 peers write to the hub at once: each process with as many as are its share.
func (x *run) writes(e *env.Env) error {
	slot := 0
	length := cmp.Or(e.Time, env.Pick(e, 5*time.Second, 2*time.Second, 300*time.Millisecond))
	// Each process streams with all its agents. Enough processes take part that up to 64 agents write.
	per := (len(x.all) + len(x.leaves) - 1) / len(x.leaves)
	some := x.leaves[:max(1, min(len(x.leaves), writers/per))]
	if per > writers {
		return fmt.Errorf("%d peers in a process: more than %d cannot write at once; take more --processes", per, writers)
	}
	var slots []int
	for i, c := range some {
		slots = append(slots, slot)
		for k := range (len(x.all)-i-1)/len(x.leaves) + 1 {
			if _, err := subprocess.Call[crowd.MeetOut](c, "Meet", crowd.MeetArgs{Agent: k, Peers: []crowd.Peer{x.hubPeer}, Limit: limit - 10*time.Second}, limit); err != nil {
				return err
			}
			slot++
		}
	}
	stream := func(plain int) (out []writer, failed error) {
		start := measure.Now() + 200*time.Millisecond
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i, c := range some {
			wg.Go(func() {
				in := crowd.StreamArgs{Start: start, End: start + length, Slot: slots[i], Plain: plain}
				got, err := subprocess.Call[crowd.StreamOut](c, "Stream", in, limit)
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, err)
				sum := 0.0
				for _, n := range got.Moved {
					sum += float64(n) / 1e9
				}
				for _, n := range got.Moved {
					out = append(out, writer{rate: float64(n) / 1e9 / length.Seconds(), process: i, perCPU: sum / got.CPU.Seconds(), cpu: got.CPU.Seconds() / float64(len(got.Moved))})
				}
			})
		}
		wg.Wait()
		return out, failed
	}
	var err error
	if x.writers, err = stream(0); err == nil && x.shared {
		x.plain, err = stream(x.hub.Pid())
	}
	return err
}

// writer is one of those that write to the hub at once.
type writer struct {
	rate    float64 // GB/s
	process int
	perCPU  float64 // GB that its process moved in a second of processor time
	cpu     float64 // seconds of processor time, its share of its process's
}

// spread is the largest to the smallest of writers.
func spread(list []writer, of func(writer) float64) float64 {
	low, high := math.Inf(1), 0.0
	for _, w := range list {
		low, high = min(low, of(w)), max(high, of(w))
	}
	return high / low
}

// holds reads what the hub holds.
func (x *run) holds() (h held) {
	_, _ = subprocess.Call[crowd.None](x.hub, "Settle", crowd.None{}, limit)
	list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", x.hub.Pid()))
	h.fds = len(list)
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", x.hub.Pid()))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			_, _ = fmt.Sscan(value, &h.memory)
		}
	}
	return h
}

func (x *run) close() {
	for _, c := range append(x.leaves, x.hub) {
		if c != nil {
			c.Kill() // agents of a thousand peers take their time to say goodbye
		}
	}
}
