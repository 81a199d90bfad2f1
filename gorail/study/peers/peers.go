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
	"gorail/gorail/study/kv/hosts"
	"gorail/gorail/study/peers/crowd"
	"gorail/internal/subprocess"
)

// Options are the study's own flags.
type Options struct {
	Peers     int // 0: as the effort says
	Processes int // of peers
	Compare   []string
	Params    []string // NAME=VALUE of GORAIL
	Hosts     bool     // each process has a network namespace
	Mesh      int      // 0: all steps; else only that so many agents all meet each other
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
	backend  string
	shared   bool       // by shared memory
	net      *hosts.Net // nil: all processes are on this host
	open     crowd.OpenArgs
	said     sync.Once
	versions string

	hub, pair         *subprocess.Client
	hubPeer, pairPeer crowd.Peer
	leaves            []*subprocess.Client
	lists             [][]crowd.Peer // of each
	all               []crowd.Peer
	took              time.Duration // to start all processes of peers, until their agents are there
	failed            error

	found
}

// found is what was measured.
type found struct {
	beside     struct{ alone, idle, busy []crowd.LatencyOut } // of the pair: to the hub, from the hub
	before     held
	with       held
	meet, wave crowd.MeetOut
	idleCPU    float64       // of the hub, cores
	waveCPU    time.Duration // of the hub and all peers
	writers    []writer
	plain      []writer // the same with copies without NIXL
	mesh       meshed
}

// held is what a process holds.
type held struct {
	fds    int
	memory int64
}

// Run measures, and fills in the result.
func Run(ctx context.Context, e *env.Env, o Options, r *result.Result) error {
	if o.Peers == 0 {
		o.Peers = env.Pick(e, most, 100, 8)
	}
	if o.Mesh != 0 {
		o.Peers = o.Mesh
		o.Processes = min(o.Processes, o.Mesh)
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
	what := fmt.Sprintf("a hub and %d peers", o.Peers)
	if o.Mesh != 0 {
		what = fmt.Sprintf("%d agents", o.Mesh)
	}
	r.Setup = fmt.Sprintf("%s in %d processes of this host; progress threads on; GORAIL with %s", what, o.Processes, strings.Join(append([]string{"its defaults"}, o.Params...), " "))
	var net *hosts.Net
	if o.Hosts {
		dir, err := os.MkdirTemp("", "gorail-peers-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if net, err = hosts.New(1+o.Processes, dir); err != nil {
			return err
		}
		defer net.Close()
		r.Setup += "; each process in a network namespace of its own, with two interfaces"
	}
	var runs []*run
	backends := append([]string{"GORAIL"}, o.Compare...)
	e.Progress.Expect(7 * len(backends))
	for _, b := range backends {
		if !e.Has(b) {
			return cli.Usage("no backend %s: no plugin of that name in %s", b, e.PluginDir(b))
		}
		if ctx.Err() != nil {
			break
		}
		p := params
		x := &run{backend: b, net: net, shared: net == nil && b == "GORAIL" && (p["provider"] == "" || p["provider"] == "sm")}
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

// measure is one backend: one pair, connect, hold, write, restart, all to all.
func (x *run) measure(ctx context.Context, e *env.Env, o Options, params map[string]string) (err error) {
	defer x.close()
	x.open = crowd.OpenArgs{Backend: x.backend, Params: params, Wheel: e.Wheel, PluginDir: e.PluginDir(x.backend)}
	type step struct {
		what string
		do   func() error
	}
	steps := []step{
		{"one pair", func() error { return x.alone(e) }},
		{"agents", func() error { return x.begin(o, "peer", o.Peers) }},
		{"connect", x.connect},
		{"idle", func() error { return x.idle(e) }},
		{"writers", func() error { return x.writes(e) }},
		{"restarts", func() error { return x.restarts(o) }},
		{"all to all", func() error { return x.mesh(o) }},
	}
	if o.Mesh != 0 {
		steps = steps[len(steps)-1:]
	}
	for _, s := range steps {
		if e.Progress.Step(x.backend + ": " + s.what); ctx.Err() != nil {
			return nil
		}
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

// start starts a process with agents, on a host if there are several.
func (x *run) start(host int, names []string, slots int) (c *subprocess.Client, list []crowd.Peer, err error) {
	begin := func() (err error) {
		c, err = subprocess.Start(subprocess.Options{Args: []string{crowd.Command}}, crowd.Service)
		return err
	}
	if x.net != nil {
		err = x.net.Hosts[host].In(begin)
	} else {
		err = begin()
	}
	if err != nil {
		return nil, nil, err
	}
	in := x.open
	in.Names, in.Slots = names, slots
	out, err := subprocess.Call[crowd.OpenOut](c, "Open", in, limit)
	x.said.Do(func() { x.versions = out.Versions })
	return c, out.Peers, err
}

// begin starts the processes of some peers.
func (x *run) begin(o Options, name string, n int) error {
	began := measure.Now()
	processes := min(n, o.Processes)
	x.leaves, x.all = make([]*subprocess.Client, processes), nil
	lists, errs := make([][]crowd.Peer, processes), make([]error, processes)
	var wg sync.WaitGroup
	for i := range processes {
		var names []string
		for k := i; k < n; k += processes {
			names = append(names, fmt.Sprintf("%s-%d", name, k))
		}
		wg.Go(func() { x.leaves[i], lists[i], errs[i] = x.start(1+i, names, 1) })
	}
	wg.Wait()
	x.took = measure.Now() - began
	x.all, x.lists = slices.Concat(lists...), lists
	return errors.Join(errs...)
}

func (x *run) connect() (err error) {
	x.before = holds(x.hub)
	if x.meet, err = x.meets(); err == nil {
		x.with = holds(x.hub)
	}
	return err
}

func (x *run) restarts(o Options) (err error) {
	for _, c := range x.leaves {
		c.Kill()
	}
	if err = x.begin(o, "peer", o.Peers); err == nil {
		spent := x.spent()
		x.wave, err = x.meets()
		x.waveCPU = x.spent() - spent
	}
	return err
}

// meets lets the hub meet all peers.
func (x *run) meets() (crowd.MeetOut, error) {
	return meet(x.hub, 0, x.all)
}

// meet lets an agent of a process meet peers.
func meet(c *subprocess.Client, agent int, peers []crowd.Peer) (crowd.MeetOut, error) {
	out, err := subprocess.Call[crowd.MeetOut](c, "Meet", crowd.MeetArgs{Agent: agent, Peers: peers, Limit: limit - 10*time.Second}, limit)
	if err != nil {
		peer := ""
		for _, p := range peers {
			if strings.Contains(err.Error(), " "+p.Name+": ") {
				peer = p.Name
			}
		}
		if said := warnings(c.Output(), peer); len(said) > 0 { // NIXL says only what kind of error it is
			err = fmt.Errorf("%w; its process logged last:\n%s", err, strings.Join(said, "\n"))
		}
	}
	return out, err
}

// mostWarnings is how many lines of a process's log go with an error.
const mostWarnings = 8

// warnings returns the last warnings and errors of a process's output: those about the peer, if there are any.
func warnings(said, peer string) []string {
	var all, about []string
	for line := range strings.Lines(said) {
		if line = strings.TrimSpace(line); !strings.Contains(line, "level=WARN") && !strings.Contains(line, "level=ERROR") {
			continue
		}
		all = append(all, line)
		if strings.Contains(line, " peer="+peer+" ") {
			about = append(about, line)
		}
	}
	if len(about) > 0 {
		all = about
	}
	return all[max(0, len(all)-mostWarnings):]
}

// writes lets up to 64 peers write to the hub at once: each process with as many as are its share.
func (x *run) writes(e *env.Env) error {
	slot := 0
	length := cmp.Or(e.Time, env.Pick(e, 15*time.Second, 5*time.Second, 300*time.Millisecond))
	// Enough processes take part that up to 64 agents write.
	per := min((len(x.all)+len(x.leaves)-1)/len(x.leaves), writers)
	some := x.leaves[:max(1, min(len(x.leaves), writers/per))]
	var slots []int
	for i, c := range some {
		slots = append(slots, slot)
		for k := range min((len(x.all)-i-1)/len(x.leaves)+1, per) {
			if _, err := meet(c, k, []crowd.Peer{x.hubPeer}); err != nil {
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
				in := crowd.StreamArgs{Start: start, End: start + length, Slot: slots[i], Agents: per, Plain: plain}
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
	if err != nil {
		return err
	}
	// Once more, with the pair beside: it would be a writer more above.
	busy := make(chan error, 1)
	go func() {
		_, err := stream(0)
		busy <- err
	}()
	time.Sleep(length / 8)
	x.beside.busy, err = x.latencies(length / 4)
	return errors.Join(err, <-busy)
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

func (x *run) close() {
	for _, c := range append(x.leaves, x.hub, x.pair) {
		if c != nil {
			c.Kill() // agents of a thousand peers take their time to say goodbye
		}
	}
}
