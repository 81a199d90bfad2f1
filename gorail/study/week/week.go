// Package week is a soak: as many transfers, peers, agents and restarts as a week has, in an hour, and what the processes hold meanwhile.
//
// Three processes: "hub" and "partner" live from the beginning to the end, and are looked at; a third is started and ended again and again. Each
// round does a share of everything, waits until its sessions have ended, and takes a sample. Between samples there is nothing but work.
package week

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gorail/backend/option"
	"gorail/gorail/cli"
	"gorail/gorail/drive"
	"gorail/gorail/measure"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/week/life"
	"gorail/internal/subprocess"
)

// Options are the study's own flags.
type Options struct {
	Scale  int // divides all numbers; 0: as the effort says
	Over   []string
	Params []string // NAME=VALUE of GORAIL
}

// Default is the word of Over for the plugin's own choice of rails.
const Default = "default"

// work is what is done in all, and in one round.
type work struct{ transfers, meets, agents, restarts int }

// aWeek is what a week has.
var aWeek = work{transfers: 10_000_000, meets: 100_000, agents: 10_000, restarts: 1_000}

// before is done before the first round: engines remember their last 64 sessions, and Go's packages the types that they have met.
// After 100 agents that is over.
var before = work{transfers: 2_000, meets: 400, agents: 100, restarts: 4}

// rests is how many samples are taken after a rest. Engines keep something small of a session that has ended, until connect_timeout is over: how
// much that is depends on the rate of sessions just before. Verdicts are about the samples after a rest.
const rests = 16

// moreThan is by how much a rest is longer than connect_timeout.
const moreThan = time.Second

// limit is for one command.
const limit = 10 * time.Minute

// together is how many agents with new names there are at a time.
const together = 10

// run is one way of the bytes.
type run struct {
	over     string
	all, one work
	rounds   int
	silent   bool // peers that end have sent no notification
	rest     time.Duration

	dir     string
	open    life.OpenArgs
	hub     *long
	partner *long
	next    chan started // the next process that will be restarted
	lives   int

	mu      sync.Mutex // guards done
	done    life.MoveOut
	kinds   work // what has been done of each kind; transfers are in done
	samples []sample
	began   time.Duration
	took    time.Duration
	failed  error
}

// long is a process that lives from the beginning to the end.
type long struct {
	*subprocess.Client
	name   string
	peers  map[string]life.Peer // its agents
	notifs uint64               // that were sent to its agents
}

// started is a process that will be ended.
type started struct {
	*subprocess.Client
	peers []life.Peer
	err   error
}

// Run measures, and fills in the result.
func Run(ctx context.Context, e *env.Env, o Options, r *result.Result) error {
	if o.Scale == 0 {
		o.Scale = env.Pick(e, 1, 20, 500)
	}
	if o.Scale < 1 || o.Scale > 1000 {
		return cli.Usage("--scale %d: want 1 to 1000", o.Scale)
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
	var runs []*run
	var err error
	for _, over := range o.Over {
		x := &run{over: over, next: make(chan started, 1)}
		x.plan(o.Scale, e.Effort == env.Smallest)
		if x.rest, err = restOf(params); err != nil {
			return err
		}
		e.Progress.Expect(x.rounds)
		runs = append(runs, x)
	}
	r.Setup = fmt.Sprintf("three processes of this host, progress threads on, GORAIL with %s", strings.Join(append([]string{"its defaults"}, o.Params...), " "))
	for _, x := range runs {
		if ctx.Err() != nil {
			break
		}
		if x.failed = x.live(ctx, e, params); x.failed != nil && !drive.Interrupted(ctx) {
			e.Fail(r, x.over, x.failed)
			e.Lost++
		}
		if x.open.Wheel != "" && len(x.samples) > 0 {
			x.fill(r)
		}
	}
	methods(r)
	return ctx.Err()
}

// restOf is as long as engines keep something of a session that has ended.
func restOf(params map[string]string) (time.Duration, error) {
	opt, _, err := option.Parse(params, os.LookupEnv)
	if err != nil {
		return 0, err
	}
	return opt.ConnectTimeout + moreThan, nil
}

// plan divides the work into rounds. The smallest form has more of what is rare, so that one object for each would show.
func (x *run) plan(scale int, smallest bool) {
	share := func(n, least int) int { return max(least, n/scale) }
	x.all = work{share(aWeek.transfers, 1000), share(aWeek.meets, 100), share(aWeek.agents, 10), share(aWeek.restarts, 1)}
	x.rounds = min(200, max(20, x.all.restarts))
	if smallest {
		x.all.agents, x.all.restarts = max(x.all.agents, 360), max(x.all.restarts, 48)
		x.all.meets = max(x.all.meets, 480)
		x.rounds = 24
	}
	x.silent = scale > 1
	x.one = work{up(x.all.transfers, x.rounds), up(x.all.meets, x.rounds), up(x.all.agents, x.rounds), up(x.all.restarts, x.rounds)}
	x.all = work{x.one.transfers * x.rounds, x.one.meets * x.rounds, x.one.agents * x.rounds, x.one.restarts * x.rounds}
}

func up(n, by int) int { return (n + by - 1) / by }

// live is one run.
func (x *run) live(ctx context.Context, e *env.Env, params map[string]string) (err error) {
	if x.dir, err = os.MkdirTemp("", "gorail-week-"); err != nil {
		return err
	}
	defer os.RemoveAll(x.dir)
	for _, f := range folders {
		if err := os.Mkdir(filepath.Join(x.dir, f.name), 0o700); err != nil {
			return err
		}
	}
	p := map[string]string{}
	for name, value := range params {
		p[name] = value
	}
	if x.over != Default {
		p["provider"] = x.over
	}
	vars := map[string]string{"GORAIL_STATS_SOCKET": filepath.Join(x.dir, "sockets"), "GORAIL_LOCAL_DIR": filepath.Join(x.dir, "local"), "TMPDIR": filepath.Join(x.dir, "tmp")}
	x.open = life.OpenArgs{Backend: "GORAIL", Env: vars, Params: p, Wheel: e.Wheel, PluginDir: e.PluginDir("GORAIL")}
	x.began = measure.Now()
	defer func() { x.took = measure.Now() - x.began }()
	if x.hub, err = x.begin("hub", "hub"); err != nil {
		return err
	}
	defer x.hub.End(10 * time.Second)
	if x.partner, err = x.begin("partner", "partner", "visitor"); err != nil {
		return err
	}
	defer x.partner.End(10 * time.Second)
	go x.another()
	defer func() {
		if s := <-x.next; s.Client != nil {
			s.Kill()
		}
	}()
	all := x.one
	x.one = before
	if err := x.round(0); err != nil {
		return fmt.Errorf("before the first round: %w", err)
	}
	x.one = all
	for n := range x.rounds {
		e.Progress.Step(fmt.Sprintf("%s: round %d of %d", x.over, n+1, x.rounds))
		if err := x.round(n); err != nil {
			return fmt.Errorf("round %d of %d: %w", n+1, x.rounds, err)
		}
		rested := x.rest > 0 && (n+1)*rests/x.rounds > n*rests/x.rounds
		if rested {
			select {
			case <-time.After(x.rest):
			case <-ctx.Done():
			}
		}
		s, err := x.look(ctx)
		s.rested = rested
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("round %d of %d: %w", n+1, x.rounds, err)
		}
		x.samples = append(x.samples, s)
	}
	return nil
}

// begin starts a process that lives to the end.
func (x *run) begin(name string, agents ...string) (*long, error) {
	s := x.start(agents...)
	if s.err != nil {
		return nil, fmt.Errorf("%s: %w", name, s.err)
	}
	l := &long{Client: s.Client, name: name, peers: map[string]life.Peer{}}
	for _, p := range s.peers {
		l.peers[p.Name] = p
	}
	return l, nil
}
