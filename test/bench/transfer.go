package main

import (
	"fmt"
	"os"
	"time"

	"gorail/test/nixl"
	"gorail/test/worker"
)

// shape is one kind of transfer.
type shape struct {
	name string
	at   worker.Layout
}

func (s shape) bytes() uint64 { return s.at.Len * uint64(s.at.Count) }

func (c *config) shapes() (out []shape, room uint64) {
	for _, n := range c.sizes {
		out = append(out, shape{sizeName(n), worker.Span(0, n)})
	}
	if c.lists {
		// Gaps keep the agent and the backend from merging neighbours.
		out = append(out,
			shape{"64 x 4 KiB", worker.Layout{Len: 4 << 10, Stride: 8 << 10, Count: 64}},
			shape{"10,000 x 8 KiB", worker.Layout{Len: 8 << 10, Stride: 12 << 10, Count: 10_000}})
	}
	for _, s := range out {
		room = max(room, s.at.End())
	}
	return out, room
}

type key struct {
	setting
	op    nixl.Op
	shape string
}

// sample collects all repeats of one case.
type sample struct {
	lat, post  []int64 // ns, of every transfer
	rate       []float64
	cpuI, cpuT []float64 // seconds per GiB
	failed     string
}

func (c *config) transfers() (string, error) {
	shapes, room := c.shapes()
	got := map[key]*sample{}
	c.each(func(s setting, t *scope) {
		ini, tgt, a, b := c.pair(t, s, room)
		for _, op := range c.ops {
			for _, sh := range shapes {
				k := key{s, op, sh.name}
				if got[k] == nil {
					got[k] = &sample{}
				}
				x := ini.Xfer(worker.XferSpec{Op: op, Local: a.At(sh.at), Remote: b.At(sh.at), Peer: "target", Notif: []byte("n")})
				if err := c.measure(x, tgt, sh, got[k]); err != nil {
					got[k].failed = err.Error()
					fmt.Fprintf(os.Stderr, "%s %s %s: %v\n", s.backend, op, sh.name, err)
				}
				if err := x.Release(); err != nil {
					t.Fatalf("release: %v", err)
				}
			}
		}
	})
	return c.transferTables(shapes, got), nil
}

// measure warms up, chooses how often, and takes the times.
func (c *config) measure(x *worker.Xfer, tgt *worker.Agent, sh shape, out *sample) error {
	const warm, timeout = 5, time.Minute
	run := func(n int, times bool) (worker.LoopResult, worker.DrainResult, error) {
		d := tgt.DrainAsync(n, timeout)
		l := x.Loop(worker.LoopArgs{N: n, Timeout: timeout, Times: times})
		r := d.Wait()
		if l.Done < n || r.Count < n {
			return l, r, fmt.Errorf("%d of %d transfers (%s), %d notifications", l.Done, n, l.Status, r.Count)
		}
		return l, r, nil
	}
	if _, _, err := run(1, false); err != nil {
		return err
	}
	w, _, err := run(warm, false)
	if err != nil {
		return err
	}
	n := min(max(int(c.budget/max(w.Wall/warm, time.Microsecond)), 10), 20_000)
	l, d, err := run(n, true)
	if err != nil {
		return err
	}
	var total int64
	for _, ns := range l.Lat {
		total += ns
	}
	gib := float64(sh.bytes()) * float64(n) / (1 << 30)
	out.lat, out.post = append(out.lat, l.Lat...), append(out.post, l.Post...)
	out.rate = append(out.rate, float64(sh.bytes())*float64(n)/float64(total))
	out.cpuI = append(out.cpuI, l.CPU.Seconds()/gib)
	out.cpuT = append(out.cpuT, d.CPU.Seconds()/gib)
	return nil
}
