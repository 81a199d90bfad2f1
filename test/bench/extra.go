package main

import (
	"fmt"
	"strings"
	"time"

	"gorail/test/nixl"
	"gorail/test/worker"
)

// posts measures what making and posting a long list costs per descriptor.
func (c *config) posts() (string, error) {
	const block, gap, times = 1 << 10, 1 << 10, 5
	counts := []int{18_880, 100_000}
	type cell struct {
		setting
		n int
	}
	made, post, whole := map[cell][]float64{}, map[cell][]float64{}, map[cell][]float64{}
	c.each(func(s setting, t *scope) {
		ini, tgt, a, b := c.pair(t, s, uint64(counts[len(counts)-1])*(block+gap))
		for _, n := range counts {
			at := worker.Layout{Len: block, Stride: block + gap, Count: n}
			x := ini.Xfer(worker.XferSpec{Op: nixl.Write, Local: a.At(at), Remote: b.At(at), Peer: "target", Notif: []byte("n")})
			d := tgt.DrainAsync(times, time.Minute)
			l := x.Loop(worker.LoopArgs{N: times, Timeout: time.Minute, Times: true})
			d.Wait()
			k := cell{s, n}
			made[k] = append(made[k], float64(x.Prepared.Nanoseconds())/float64(n))
			for i := range l.Lat {
				post[k] = append(post[k], float64(l.Post[i])/float64(n))
				whole[k] = append(whole[k], float64(l.Lat[i])/float64(n))
			}
			if err := x.Release(); err != nil {
				t.Fatalf("release: %v", err)
			}
		}
	})
	var b strings.Builder
	b.WriteString("### Cost per descriptor (1 KiB blocks, not mergeable)\n\n")
	var rows [][]string
	for _, pt := range c.progress {
		for _, n := range counts {
			for _, be := range c.backends {
				k := cell{setting{be, pt == "1"}, n}
				rows = append(rows, []string{fmt.Sprint(n), c.title(be), pt, num(median(made[k])), num(median(post[k])), num(median(whole[k]))})
			}
		}
	}
	table(&b, []string{"descriptors", "backend", "progress thread", "ns to make the request", "ns in post", "ns until done"}, rows)
	return b.String(), nil
}

// starts measures the first engine of a process, later ones, and the first
// transfer of a pair.
func (c *config) starts() (string, error) {
	type cols struct{ first, later, threads, rss, fds, xfer []float64 }
	got := map[setting]*cols{}
	c.each(func(s setting, t *scope) {
		g := got[s]
		if g == nil {
			g = &cols{}
			got[s] = g
		}
		w := c.worker(t, s)
		w.Agent(worker.AgentConfig{Name: "bare", ProgThread: s.progress})
		before := w.Stats()
		a := c.agent(w, s, "first")
		after := w.Stats()
		g.first = append(g.first, a.Created.Seconds()*1e3)
		g.later = append(g.later, c.agent(w, s, "later").Created.Seconds()*1e3)
		g.threads = append(g.threads, float64(after.Threads-before.Threads))
		g.rss = append(g.rss, float64(after.RSSKiB-before.RSSKiB)/1024)
		g.fds = append(g.fds, float64(after.FDs-before.FDs))
		ini, tgt, src, dst := c.pair(t, s, 4096)
		x := ini.Xfer(worker.XferSpec{Op: nixl.Write, Local: src.All(), Remote: dst.All(), Peer: "target", Notif: []byte("n")})
		d := tgt.DrainAsync(1, 20*time.Second)
		l := x.Loop(worker.LoopArgs{N: 1, Timeout: 20 * time.Second, Times: true})
		d.Wait()
		for _, ns := range l.Lat {
			g.xfer = append(g.xfer, float64(ns)/1e6)
		}
	})
	var b strings.Builder
	b.WriteString("### Start\n\n")
	var rows [][]string
	for _, pt := range c.progress {
		for _, be := range c.backends {
			g := got[setting{be, pt == "1"}]
			if g == nil {
				continue
			}
			// The worker's own thread for an agent is not the engine's.
			rows = append(rows, []string{c.title(be), pt, num(median(g.first)), num(median(g.later)),
				num(median(g.threads) - 1), num(median(g.rss)), num(median(g.fds)), num(median(g.xfer))})
		}
	}
	table(&b, []string{"backend", "progress thread", "ms, first engine", "ms, later engine", "threads more",
		"MiB more", "fds more", "ms, first 4 KiB transfer"}, rows)
	return b.String(), nil
}

// idle measures the CPU of connected agents that nobody uses.
func (c *config) idle() (string, error) {
	const window, settle = 10 * time.Second, time.Second
	type cols struct{ ini, tgt []float64 }
	got := map[setting]*cols{}
	once := *c
	once.repeat = 1
	once.each(func(s setting, t *scope) {
		ini, tgt, a, b := c.pair(t, s, 1<<20)
		x := ini.Xfer(worker.XferSpec{Op: nixl.Write, Local: a.All(), Remote: b.All(), Peer: "target", Notif: []byte("n")})
		d := tgt.DrainAsync(10, 20*time.Second)
		x.Loop(worker.LoopArgs{N: 10, Timeout: 20 * time.Second})
		d.Wait()
		time.Sleep(settle)
		i, j := ini.Stats().CPU, tgt.Stats().CPU
		time.Sleep(window)
		i, j = ini.Stats().CPU-i, tgt.Stats().CPU-j
		got[s] = &cols{[]float64{100 * i.Seconds() / window.Seconds()}, []float64{100 * j.Seconds() / window.Seconds()}}
	})
	var b strings.Builder
	b.WriteString("### Idle, % of a core over 10 s\n\n")
	var rows [][]string
	for _, pt := range c.progress {
		for _, be := range c.backends {
			if g := got[setting{be, pt == "1"}]; g != nil {
				rows = append(rows, []string{c.title(be), pt, num(median(g.ini)), num(median(g.tgt))})
			}
		}
	}
	table(&b, []string{"backend", "progress thread", "initiator", "target"}, rows)
	return b.String(), nil
}
