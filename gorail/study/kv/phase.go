package kv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"gorail/gorail/bench/layout"
	"gorail/gorail/measure"
	"gorail/gorail/study/env"
	"gorail/gorail/study/kv/node"
	"gorail/internal/subprocess"
)

// phase is one distribution.
type phase struct {
	model    layout.Model
	shape    node.Shape
	title    string
	mode     mode
	rate     float64 // requests a second; 0: one after the other
	requests []request
	took     time.Duration
	verified int // slots
}

// request is one prompt.
type request struct {
	prefill, decode, slot int
	at                    time.Duration // of its arrival, from the phase's start
	ready                 time.Duration // its last layer is computed
	layers                int           // that are at the decode node
	done                  time.Duration // the last block is there, or the failure is known
	failed                string
}

// why says why a request has not ended.
func (q request) why(s node.Shape) string {
	if q.failed != "" {
		return q.failed
	}
	return fmt.Sprintf("%d of %d layers came", q.layers, s.Layers)
}

// times are those from the last layer's computation to the last block, of requests that f selects; sorted.
func (p *phase) times(f func(request) bool) (out []time.Duration) {
	for _, q := range p.requests {
		if q.failed == "" && q.layers == p.shape.Layers && (f == nil || f(q)) {
			out = append(out, max(0, q.done-q.ready))
		}
	}
	slices.Sort(out)
	return out
}

// quantile is a quantile of times; 0 without any.
func (p *phase) quantile(q float64) time.Duration { return at(p.times(nil), q) }

func at(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// failures are the requests that failed or never ended.
func (p *phase) failures() (out []request) {
	for _, q := range p.requests {
		if q.failed != "" || q.layers < p.shape.Layers {
			out = append(out, q)
		}
	}
	return out
}

// grace is how long requests may take beyond the last arrival.
const grace = 15 * time.Second

// alone moves single requests, one after the other, by WRITE.
func (s *study) alone(ctx context.Context, c *cluster, m layout.Model) (*phase, error) {
	p := &phase{model: m, shape: s.shape(m), title: "alone, WRITE, whole"}
	for i := range env.Pick(s.Env, 10, 6, 3) + 1 {
		if ctx.Err() != nil {
			break
		}
		one := &phase{shape: p.shape, requests: []request{{prefill: i % s.Prefill, decode: i % s.Decode, slot: i % slots, ready: s.Compute}}}
		if err := s.run(c, one); err != nil {
			return nil, err
		}
		if i == 0 {
			continue // it connects
		}
		p.requests = append(p.requests, one.requests...)
		p.took += one.took
		p.verified += one.verified
	}
	if f := p.failures(); len(f) > 0 {
		return nil, fmt.Errorf("a request alone failed: %s", f[0].failed)
	}
	return p, nil
}

// poisson lets requests arrive at random. A prefill node computes one after the other.
func (s *study) poisson(c *cluster, p *phase) error {
	length := env.Pick(s.Env, 8*time.Second, 3*time.Second, 300*time.Millisecond)
	if s.Time > 0 {
		length = s.Time
	}
	r := rand.New(rand.NewPCG(1, p.shape.Bytes())) // the same arrivals in each mode
	free := make([]time.Duration, s.Prefill)
	for t := time.Duration(0); len(p.requests) < mostRequests; {
		t += time.Duration(r.ExpFloat64() / p.rate * float64(time.Second))
		if t > length && len(p.requests) >= leastRequests {
			break
		}
		i := slices.Index(free, slices.Min(free)) // the prefill node that is free first
		n := len(p.requests)
		free[i] = max(free[i], t) + s.Compute
		p.requests = append(p.requests, request{prefill: i, decode: n % s.Decode, slot: n / s.Decode % slots, at: t, ready: free[i]})
	}
	return s.run(c, p)
}

const (
	leastRequests = 5
	mostRequests  = 2000
)

// run runs the requests of a phase, and compares the bytes of all slots if none failed.
func (s *study) run(c *cluster, p *phase) error {
	if err := c.compare(0); err != nil {
		return err
	}
	start := measure.Now() + 20*time.Millisecond + 4*c.within*time.Duration(len(c.all()))
	tasks := make([][]node.Task, s.Prefill)
	last := time.Duration(0)
	for id, q := range p.requests {
		ready := start + q.ready
		last = max(last, ready)
		step := s.Compute / time.Duration(p.shape.Layers)
		t := node.Task{Request: id, Decode: q.decode, Slot: q.slot, Read: p.mode.read, Ready: ready}
		if !p.mode.layer {
			t.At, t.N = ready, p.shape.Layers
			tasks[q.prefill] = append(tasks[q.prefill], t)
			continue
		}
		for i := range p.shape.Layers {
			t.At, t.First, t.N = ready-time.Duration(p.shape.Layers-1-i)*step, i, 1
			tasks[q.prefill] = append(tasks[q.prefill], t)
		}
	}
	for _, list := range tasks {
		slices.SortStableFunc(list, func(a, b node.Task) int { return int(a.At - b.At) })
	}
	events, err := c.phase(tasks, last+grace)
	s.within = max(s.within, c.within)
	for _, e := range events {
		if e.Request < 0 || e.Request >= len(p.requests) { // a node on another host may tell anything
			err = errors.Join(err, fmt.Errorf("a node tells of request %d of %d", e.Request, len(p.requests)))
			continue
		}
		q := &p.requests[e.Request]
		if e.Failed != "" {
			q.failed = e.Failed
		} else {
			q.layers += e.Layers
		}
		q.done = max(q.done, e.At-start)
	}
	for _, q := range p.requests {
		p.took = max(p.took, q.done)
	}
	if err != nil || len(p.failures()) > 0 {
		return err
	}
	return s.verify(c, p)
}

// verify compares the bytes of all slots that the phase has filled.
func (s *study) verify(c *cluster, p *phase) error {
	slots := make([][]node.SlotOf, s.Decode)
	for _, q := range p.requests {
		if one := (node.SlotOf{Prefill: q.prefill, Slot: q.slot}); !slices.Contains(slots[q.decode], one) {
			slots[q.decode] = append(slots[q.decode], one)
			p.verified++
		}
	}
	for i, m := range c.decode {
		if _, err := subprocess.Call[node.None](m.Client, "Check", node.CheckArgs{Slots: slots[i]}, commandLimit); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return nil
}
