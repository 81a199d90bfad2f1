// Package kv is the study of a serving cluster: prefill and decode agents, requests that arrive at random, and the time until a request's
// last block is at its decode node.
package kv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"gorail/gorail/bench/layout"
	"gorail/gorail/cli"
	"gorail/gorail/drive"
	"gorail/gorail/measure"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/kv/campaign"
	"gorail/gorail/study/kv/node"
)

// Options are the study's own flags.
type Options struct {
	Prefill, Decode int      // nodes
	Models          []string // none: as the effort says
	Tokens          int      // of a prompt; 0: as the effort says
	Compute         time.Duration
	Rate            float64  // requests a second of all prefill nodes; 0: half of what was measured before
	Chaos           []string // faults; none: no campaign
	Seed            uint64   // of a campaign
	Backend         string
	Compare         []string // backends that get the same campaign
	Params          []string // NAME=VALUE of the backend
}

// study is one run.
type study struct {
	*env.Env
	Options
	params map[string]string
	phases []*phase
	within time.Duration // with a peer: how well the clocks of both hosts were compared
}

// mode is how blocks move.
type mode struct {
	read  bool
	layer bool // each layer when it is computed; otherwise all at the end
}

func (m mode) String() string {
	return map[bool]string{false: "WRITE", true: "READ"}[m.read] + ", " + map[bool]string{false: "whole", true: "layer by layer"}[m.layer]
}

// modes are all combinations.
var modes = []mode{{false, false}, {false, true}, {true, false}, {true, true}}

// Run measures, and fills in the result.
func Run(ctx context.Context, e *env.Env, o Options, r *result.Result) error {
	if o.Prefill == 0 {
		o.Prefill = map[bool]int{false: 2, true: 4}[len(o.Chaos) > 0]
	}
	if o.Decode == 0 {
		o.Decode = map[bool]int{false: 2, true: 4}[len(o.Chaos) > 0]
	}
	s := &study{Env: e, Options: o, params: map[string]string{}}
	models, err := s.settle(r)
	if err != nil {
		return cli.Usage("%v", err)
	}
	r.Checks = append(r.Checks, env.Quiet())
	if len(s.Chaos) > 0 {
		return campaign.Run(ctx, e, campaign.Options{Prefill: s.Prefill, Decode: s.Decode, Faults: s.Chaos, Seed: s.Seed, Backends: append([]string{s.Backend}, s.Compare...), Params: s.params,
			Model: models[0], Tokens: s.Tokens}, r)
	}
	list := modes
	if e.Effort == env.Smallest {
		list = []mode{{false, false}, {true, true}}
	}
	e.Progress.Expect(len(models) * (1 + len(list)))
	for _, m := range models {
		if ctx.Err() != nil {
			break
		}
		if err := s.model(ctx, m, list, r); err != nil && !drive.Interrupted(ctx) {
			e.Fail(r, m.Name, err)
			e.Lost++
		}
	}
	s.fill(r)
	return ctx.Err()
}

// settle checks the options and fills in what the user left open.
func (s *study) settle(r *result.Result) (models []layout.Model, err error) {
	if s.Prefill < 1 || s.Decode < 1 || s.Prefill+s.Decode > mostNodes {
		return nil, fmt.Errorf("--prefill %d --decode %d: want one of each at least, %d together at most", s.Prefill, s.Decode, mostNodes)
	}
	if err := s.chaos(); err != nil {
		return nil, err
	}
	for _, p := range s.Params {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--param %q: write NAME=VALUE", p)
		}
		s.params[name] = value
	}
	for _, b := range append([]string{s.Backend}, s.Compare...) {
		if !s.Has(b) {
			return nil, fmt.Errorf("no backend %s: no plugin of that name in %s", b, s.PluginDir(b))
		}
	}
	names := s.Models
	if len(names) == 0 && len(s.Chaos) > 0 {
		names = []string{"llama-70b-tp8"}
	}
	if len(names) == 0 {
		names = env.Pick(s.Env, []string{"llama-8b", "llama-70b-tp8", "deepseek-mla", "qwen-32b"}, []string{"llama-8b", "deepseek-mla"}, []string{"deepseek-mla"})
	}
	if s.Tokens == 0 && len(s.Chaos) > 0 {
		s.Tokens = 32
	}
	if s.Tokens == 0 {
		s.Tokens = env.Pick(s.Env, 512, 256, 64)
	}
	if s.Tokens < 1 || s.Compute < 0 || s.Rate < 0 {
		return nil, errors.New("--tokens must be 1 or more, --compute and --rate not negative")
	}
	if s.Compute == 0 {
		s.Compute = env.Pick(s.Env, 50*time.Millisecond, 50*time.Millisecond, 5*time.Millisecond)
	}
	where := "on this host"
	if s.Peer.Given() {
		where = "on its host, prefill here and decode at " + s.Peer.Addr
		if s.There != r.Machine {
			r.Machine += "; decode nodes: " + s.There
		}
	}
	r.Setup = fmt.Sprintf("%d prefill and %d decode agents, each a process %s; backend %s; prompts of %d tokens; %v to compute a prompt; progress threads on", s.Prefill, s.Decode, where, strings.Join(append([]string{s.Backend}, s.Params...), " "), s.Tokens, s.Compute)
	for _, n := range names {
		m, err := layout.Find(n)
		if err != nil {
			return nil, fmt.Errorf("--model: %w", err)
		}
		models = append(models, m)
	}
	return models, nil
}

// chaos checks what a campaign wants.
func (s *study) chaos() error {
	switch {
	case len(s.Chaos) == 0 && len(s.Compare) > 0:
		return errors.New("--compare: a campaign (--chaos) compares backends; others take one: --backend")
	case len(s.Chaos) == 0:
		return nil
	case s.Prefill < 2 || s.Decode < 2:
		return errors.New("--chaos: one node has a fault, and others go on: --prefill 2 and --decode 2 at least")
	}
	return campaign.Known(s.Chaos)
}

const (
	mostNodes = 16
	slots     = 2       // of each prefill node at each decode node
	mostPool  = 4 << 30 // bytes of all nodes
)

// shape is a request of a model.
func (s *study) shape(m layout.Model) node.Shape {
	return node.Shape{Layers: m.Layers, Blocks: m.LayerBlocks(s.Tokens), Block: m.Block, Slots: slots}
}

// model measures one model: alone first, then at random arrivals in each mode.
func (s *study) model(ctx context.Context, m layout.Model, list []mode, r *result.Result) error {
	shape := s.shape(m)
	if need := uint64(slots*(s.Prefill+s.Prefill*s.Decode)) * shape.Bytes(); need > mostPool {
		return fmt.Errorf("%d tokens take %s of memory for all nodes, above %s: lower --tokens, --prefill or --decode", s.Tokens, measure.SizeName(need>>20<<20), measure.SizeName(mostPool))
	}
	c, err := s.cluster(shape)
	if err != nil {
		return err
	}
	defer c.close()
	if c.versions != "" {
		r.Versions = "gorail " + s.Version + ", " + c.versions
	}
	s.Progress.Step(m.Name + " alone")
	alone, err := s.alone(ctx, c, m)
	if err != nil {
		return err
	}
	if len(alone.requests) == 0 { // interrupted
		return ctx.Err()
	}
	s.phases = append(s.phases, alone)
	rate := s.Rate
	if rate == 0 {
		rate = min(0.5/alone.quantile(0.5).Seconds(), 0.7*float64(s.Prefill)/s.Compute.Seconds(), mostRate)
	}
	for _, md := range list {
		if ctx.Err() != nil {
			return nil
		}
		s.Progress.Step(fmt.Sprintf("%s %v, %.3g requests a second", m.Name, md, rate))
		p := &phase{model: m, shape: shape, title: md.String(), mode: md, rate: rate}
		if err := s.poisson(c, p); err != nil {
			return err
		}
		s.phases = append(s.phases, p)
		if f := p.failures(); len(f) > 0 && ctx.Err() == nil {
			s.Lost++
			s.Fail(r, m.Name+" "+p.title, fmt.Errorf("%d of %d requests did not end: %s", len(f), len(p.requests), f[0].why(shape)))
		}
	}
	return nil
}

// mostRate bounds the requests a second that the study chooses.
const mostRate = 200
