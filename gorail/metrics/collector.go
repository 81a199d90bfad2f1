package metrics

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"gorail/gorail/live"
)

const (
	mostEngines = 256 // of a scrape
	mostLabel   = 200 // bytes of a name that others choose
)

// Collector asks the engines of a host at each scrape. Safe for concurrent use.
type Collector struct {
	Source live.Source
	Log    func(format string, args ...any) // gets a line when an engine stops to answer, or answers again

	mu    sync.Mutex
	known map[string]identity // engines of the last scrape
}

// identity is what an engine said of itself. One that does not answer keeps its labels.
type identity struct {
	agent, pid string
	err        string
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range all {
		to <- d
	}
}

// Collect implements prometheus.Collector. It takes no longer than live.Source.Read.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	begin := time.Now()
	engines, err := c.Source.Read(context.Background())
	if err != nil {
		to <- prometheus.NewInvalidMetric(up.desc, err)
		return
	}
	shown := engines[:0]
	seen := map[string]bool{}
	for _, e := range engines {
		if id := e.ID(); !seen[id] { // two folders may be one
			seen[id] = true
			shown = append(shown, e)
		}
	}
	left := max(0, len(shown)-mostEngines)
	shown = shown[:len(shown)-left]
	for i, who := range c.identify(shown) {
		p := printer{to: to, base: []string{who.agent, who.pid, shown[i].ID()}}
		answered := 0.0
		if shown[i].Live != nil {
			answered = 1
			p.engine(shown[i].Live)
		}
		p.put(up, answered)
	}
	p := printer{to: to}
	p.put(leftOut, float64(left))
	p.put(duration, time.Since(begin).Seconds())
}

// identify gives the engines their labels, and logs those that stop to answer or answer again.
func (c *Collector) identify(engines []live.Engine) []identity {
	c.mu.Lock()
	defer c.mu.Unlock()
	list, now := make([]identity, len(engines)), map[string]identity{}
	for i := range engines {
		e := &engines[i]
		before := c.known[e.ID()]
		who := before
		if who.err = e.Error; e.Live != nil {
			who.agent, who.pid = label(e.Agent), strconv.Itoa(e.PID)
		}
		switch {
		case c.Log == nil || who.err == before.err:
		case who.err == "":
			c.Log("agent %s, process %s answers again", who.agent, who.pid)
		default:
			c.Log("%s: %s", e.Socket, who.err)
		}
		list[i], now[e.ID()] = who, who
	}
	c.known = now
	return list
}

// label cuts a name that others choose.
func label(s string) string {
	if len(s) <= mostLabel {
		return s
	}
	for i := mostLabel; ; i-- {
		if utf8.RuneStart(s[i]) {
			return s[:i]
		}
	}
}

// printer sends the metrics of one engine.
type printer struct {
	to   chan<- prometheus.Metric
	base []string
}

func (p *printer) labels(more []string) []string {
	return append(p.base[:len(p.base):len(p.base)], more...)
}

func (p *printer) put(f family, v float64, labels ...string) {
	m, err := prometheus.NewConstMetric(f.desc, f.kind, v, p.labels(labels)...)
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, fmt.Errorf("%v: %w", labels, err))
	}
	p.to <- m
}
