// Package campaign is a serving cluster under faults: prefill and decode nodes, requests between all pairs, and one fault after the other.
//
// Each node is a process. If this machine allows it, each is also a host of its own (package hosts), so that the network can fail. Requests are
// those of vLLM's NixlConnector: a prefill node fills blocks, and the router (this process) hands the request to a decode node. That one knows
// the engine, or meets it first (add_remote_agent, prepared lists). It READs the blocks, and the notification at the end frees them. Each pair has
// one request in flight, and then pauses. The router sends nothing to a node whose process has ended, and nothing is repeated: a failure counts.
//
// A round is one fault at one victim: a quiet time, the fault, its end, and the wait for a good request of each pair of the victim. Seed and list
// fix the order and the victims. Nodes that are killed are the first of their kind, so that all others live from the beginning to the end: what
// they hold is compared. Bytes of each request have a seed of their own, and are compared after each. Every wait has a bound: a pair that does not
// recover is reported, and nodes are started anew until it does. Another backend gets the same rounds afterwards.
package campaign

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gorail/gorail/bench/layout"
	"gorail/gorail/measure"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/kv/hosts"
	"gorail/gorail/study/kv/node"
)

// All is the list of all faults, by a word.
const All = "campaign"

// Options are the study's.
type Options struct {
	Prefill, Decode int
	Faults          []string // or All
	Seed            uint64
	Backends        []string // one after the other
	Params          map[string]string
	Model           layout.Model
	Tokens          int
}

// slotsOfPair is how many slots a pair has: a request may still be held while the next one is computed.
const slotsOfPair = 2

// pace is how long everything takes.
type pace struct {
	rounds   int           // of each fault
	quiet    time.Duration // before a fault
	hold     time.Duration // of a fault without a time in its name
	patience time.Duration // for a good request after the fault, and for a request
	settle   time.Duration // for survivors to give up what they hold of others, at the end
	longest  time.Duration // faults above are left out
}

func paceOf(e *env.Env) pace {
	return env.Pick(e, pace{rounds: 2, quiet: 3 * time.Second, hold: 5 * time.Second, patience: 100 * time.Second, settle: 10 * time.Minute, longest: time.Hour},
		pace{rounds: 1, quiet: 2 * time.Second, hold: 3 * time.Second, patience: 60 * time.Second, settle: time.Minute, longest: 10 * time.Second},
		pace{rounds: 1, quiet: 400 * time.Millisecond, hold: time.Second, patience: 15 * time.Second, settle: 15 * time.Second, longest: time.Second})
}

// campaign is one run of one backend.
type campaign struct {
	*env.Env
	Options
	pace
	backend string
	dir     string
	net     *hosts.Net // nil: all processes are on this host
	random  *rand.Rand
	shape   node.Shape
	lives   int
	ports   int // ports given out on this host

	prefill, decode []*seat
	spare           *hosts.Host // no node is there
	traffic         *traffic
	rounds          []*round
	states          []state
	versions        string
	clock           bool     // nodes have a clock of their own
	revived         []string // nodes that the study started anew, because they died or a pair did not recover
}

// seat is the place of a node in the cluster. Nodes take it one after the other.
type seat struct {
	kind   string // prefill, decode
	number int
	host   *hosts.Host
	name   string
	ports  [2]int        // control, data
	since  time.Duration // when its node was ready
	killed bool          // a survivor's node lives from the beginning

	mu   sync.Mutex    // guards what follows
	node *member       // nil: none is there
	up   chan struct{} // closed when there is one
}

// round is one fault at one victim.
type round struct {
	fault   *fault
	victim  *seat
	quiet   time.Duration // when its quiet time began, by the study's clock
	began   time.Duration // the fault
	made    time.Duration // it is there: what began before was in flight
	back    time.Duration // its end: the peer is back
	over    time.Duration
	note    string
	failed  error // the fault could not be made
	waiting []int // pairs without a good request within patience
	sums
}

// Run runs the campaign, and fills in the result.
func Run(ctx context.Context, e *env.Env, o Options, r *result.Result) error {
	r.Title, r.Asked = "A serving cluster under faults", "After each fault: how soon is there a good request again, which requests fail, whose are slower, what stays behind?"
	p := paceOf(e)
	list, out, err := choose(o, p, e.Peer.Given())
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gorail-campaign-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Mkdir(filepath.Join(dir, "s"), 0o700); err != nil {
		return err
	}
	list, net, out := place(list, out, o, dir, e.Peer.Given())
	if net != nil {
		defer net.Close()
	}
	v := &view{options: o, pace: p, out: out, net: net != nil}
	e.Progress.Expect(len(o.Backends) * p.rounds * len(list))
	for _, b := range o.Backends {
		if ctx.Err() != nil {
			break
		}
		c := &campaign{clock: slices.ContainsFunc(list, func(f *fault) bool { return f.name == "clock" }), Env: e, Options: o, pace: p, backend: b, dir: dir, net: net, random: rand.New(rand.NewPCG(o.Seed, 58)),
			shape: node.Shape{Layers: o.Model.Layers, Blocks: o.Model.LayerBlocks(o.Tokens), Block: o.Model.Block, Slots: slotsOfPair * o.Decode}}
		err := c.run(ctx, list)
		if err != nil && ctx.Err() == nil {
			e.Fail(r, b, err)
			if b == "GORAIL" {
				e.Lost++
			}
		}
		if c.versions != "" {
			r.Versions = "gorail " + e.Version + ", " + c.versions
		}
		if len(c.rounds) > 0 {
			c.sum()
			v.runs = append(v.runs, c)
		}
	}
	v.fill(r)
	return ctx.Err()
}

// run is one backend.
func (c *campaign) run(ctx context.Context, list []*fault) error {
	defer c.close()
	if err := c.start(); err != nil {
		return err
	}
	c.traffic = newTraffic(c)
	defer c.traffic.stop()
	c.traffic.start(ctx)
	if late := c.recovered(ctx, c.pairs(), measure.Now()); len(late) > 0 {
		return fmt.Errorf("before any fault: %d of %d pairs have no good request within %v: %s", len(late), len(c.pairs()), c.patience, c.traffic.lastFailure())
	}
	if err := c.round(ctx, nothing); err != nil {
		return err
	}
	c.traffic.stop()
	c.states = c.look(nil)
	c.traffic.start(ctx)
	for range c.pace.rounds {
		for _, f := range list {
			if ctx.Err() != nil {
				return nil
			}
			c.Progress.Step(fmt.Sprintf("%s: %s", c.backend, f.name))
			if err := c.round(ctx, f); err != nil {
				return err
			}
		}
	}
	c.traffic.stop()
	c.settled(ctx)
	return nil
}

// round makes one fault.
func (c *campaign) round(ctx context.Context, f *fault) error {
	r := &round{fault: f, quiet: measure.Now(), victim: c.victim(f)}
	c.rounds = append(c.rounds, r)
	sleep(ctx, c.pace.quiet)
	pairs := c.pairsOf(r.victim)
	c.traffic.hurry(pairs, rushPause)
	sleep(ctx, rush)
	c.traffic.hurry(pairs, shortPause)
	defer c.traffic.hurry(nil, 0)
	r.began = measure.Now()
	r.failed = f.begin(c, r.victim)
	r.made = measure.Now()
	hold := f.hold
	if hold == 0 && f.pause {
		hold = c.pace.hold
	}
	if r.failed == nil {
		sleep(ctx, hold)
	}
	if err := f.end(c, r); err != nil && r.failed == nil {
		return fmt.Errorf("%s at %s: %w", f.name, r.victim.name, err)
	}
	r.back = measure.Now()
	if s := r.victim; s.since > r.began {
		r.back = s.since
	}
	if err := c.restartDead(r); err != nil {
		return err
	}
	r.waiting = c.recovered(ctx, pairs, r.back)
	if len(r.waiting) > 0 && ctx.Err() == nil {
		if err := c.revive(ctx, r); err != nil {
			return err
		}
	}
	if err := c.restartDead(r); err != nil {
		return err
	}
	sleep(ctx, c.pace.quiet/2)
	r.over = measure.Now()
	return nil
}

// victim chooses a node by the seed. Those that are killed are the first of their kind.
func (c *campaign) victim(f *fault) *seat {
	kind, n := c.random.IntN(2), c.random.Uint32()
	list := c.prefill
	if kind == 1 && !(f.local && c.Peer.Given()) {
		list = c.decode
	}
	if f.kills {
		return list[0]
	}
	if len(list) == 1 {
		return list[0]
	}
	return list[1+int(n)%(len(list)-1)]
}

// recovered waits for a good request of each pair after a moment. It returns the pairs that had none within patience.
func (c *campaign) recovered(ctx context.Context, pairs []int, after time.Duration) (late []int) {
	end := measure.Now() + c.patience
	for ctx.Err() == nil {
		late = slices.DeleteFunc(slices.Clone(pairs), func(p int) bool { return c.traffic.goodAfter(p, after) })
		if len(late) == 0 || measure.Now() > end {
			return late
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// revive starts nodes anew until all pairs work: first the victim, then the others of the pairs that do not.
func (c *campaign) revive(ctx context.Context, r *round) error {
	late := r.waiting
	for step := range 2 {
		seats := []*seat{r.victim}
		if step == 1 {
			for _, p := range late {
				i, j := c.pair(p)
				for _, s := range []*seat{c.prefill[i], c.decode[j]} {
					if !slices.Contains(seats, s) {
						seats = append(seats, s)
					}
				}
			}
		}
		for _, s := range seats {
			c.kill(s)
			if err := c.renew(s); err != nil {
				return err
			}
			if s != r.victim {
				c.revived = append(c.revived, fmt.Sprintf("%s after %s: a pair did not recover", s.name, r.fault.name))
			}
		}
		if late = c.recovered(ctx, late, measure.Now()); len(late) == 0 {
			return nil
		}
	}
	return errors.New("pairs do not work after all their nodes were started anew: " + c.traffic.lastFailure())
}

// restartDead starts nodes anew whose process the study has not ended.
func (c *campaign) restartDead(r *round) error {
	for _, s := range c.seats() {
		m := s.now()
		if m == nil || m.remote || m.alive() {
			continue
		}
		how, _ := m.Wait()
		c.revived = append(c.revived, fmt.Sprintf("%s after %s: its process died: %s", s.name, r.fault.name, how))
		c.kill(s)
		if err := c.renew(s); err != nil {
			return err
		}
	}
	return nil
}

// pairs are all pairs of a prefill and a decode node, by number.
func (c *campaign) pairs() (out []int) {
	for p := range c.Prefill * c.Decode {
		out = append(out, p)
	}
	return out
}

// pair is the prefill and the decode node of a pair.
func (c *campaign) pair(p int) (i, j int) { return p / c.Decode, p % c.Decode }

// pairsOf are the pairs of a node.
func (c *campaign) pairsOf(s *seat) (out []int) {
	for _, p := range c.pairs() {
		if i, j := c.pair(p); c.prefill[i] == s || c.decode[j] == s {
			out = append(out, p)
		}
	}
	return out
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
