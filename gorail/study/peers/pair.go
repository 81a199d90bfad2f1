package peers

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"gorail/gorail/measure"
	"gorail/gorail/study/env"
	"gorail/gorail/study/peers/crowd"
	"gorail/internal/procstat"
	"gorail/internal/subprocess"
)

// meshAgents is how many agents meet all others.
const meshAgents = 64

// meshed is what it takes when all agents meet all others.
type meshed struct {
	agents int
	took   time.Duration // until the first transfers of all pairs have ended
	cpu    time.Duration // processor time of all agents for that
	fds    int
	memory int64 // KiB
}

// alone starts the hub and one peer, and measures that pair.
func (x *run) alone(e *env.Env) error {
	var list []crowd.Peer
	var err error
	if x.hub, list, err = x.start(0, []string{"hub"}, writers); err != nil {
		return err
	}
	x.hubPeer = list[0]
	if x.pair, list, err = x.start(1, []string{"pair"}, 1); err != nil {
		return err
	}
	x.pairPeer = list[0]
	if _, err = meet(x.pair, 0, []crowd.Peer{x.hubPeer}); err == nil {
		_, err = meet(x.hub, 0, []crowd.Peer{x.pairPeer})
	}
	if err == nil {
		x.beside.alone, err = x.latencies(pairTime(e))
	}
	return err
}

func pairTime(e *env.Env) time.Duration {
	return env.Pick(e, 3*time.Second, time.Second, 50*time.Millisecond)
}

// latencies measures the pair: to the hub, then from the hub.
func (x *run) latencies(d time.Duration) (out []crowd.LatencyOut, err error) {
	for _, k := range []struct {
		from *subprocess.Client
		to   crowd.Peer
	}{{x.pair, x.hubPeer}, {x.hub, x.pairPeer}} {
		l, err := subprocess.Call[crowd.LatencyOut](k.from, "Latency", crowd.LatencyArgs{Peer: k.to, Time: d}, limit)
		if err != nil {
			return out, err
		}
		out = append(out, l)
	}
	return out, nil
}

// idle measures what the hub's peers cost while nothing is transferred, and the pair beside them.
func (x *run) idle(e *env.Env) (err error) {
	time.Sleep(env.Pick(e, 5*time.Second, time.Second, 100*time.Millisecond)) // what connecting has begun ends
	before, err := procstat.Of(x.hub.Pid())
	if err != nil {
		return err
	}
	began := measure.Now()
	time.Sleep(env.Pick(e, 20*time.Second, 5*time.Second, 200*time.Millisecond))
	after, err := procstat.Of(x.hub.Pid())
	if err != nil {
		return err
	}
	x.idleCPU = (after - before).Seconds() / (measure.Now() - began).Seconds()
	x.beside.idle, err = x.latencies(pairTime(e))
	return err
}

// mesh lets agents meet all others at once, after all other processes have ended.
func (x *run) mesh(o Options) error {
	x.close()
	x.hub, x.pair = nil, nil
	n := min(o.Peers, meshAgents)
	if o.Mesh != 0 {
		n = o.Mesh
	}
	if x.backend == "GORAIL" { // what is measured is the time, also if it is above the defaults of 30 s
		x.open.Params = maps.Clone(x.open.Params)
		for _, name := range []string{"xfer_timeout", "connect_timeout"} {
			if x.open.Params[name] == "" {
				x.open.Params[name] = "4m"
			}
		}
	}
	if err := x.begin(o, "all", n); err != nil {
		return err
	}
	var before, after held
	for _, c := range x.leaves {
		before = before.plus(holds(c))
	}
	spent, began := x.spent(), measure.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for i, c := range x.leaves {
		for k, me := range x.lists[i] {
			others := slices.DeleteFunc(slices.Clone(x.all), func(p crowd.Peer) bool { return p.Name == me.Name })
			wg.Go(func() {
				if _, err := meet(c, k, others); err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed = errors.Join(failed, fmt.Errorf("%s: %w", me.Name, err))
				}
			})
		}
	}
	wg.Wait()
	x.found.mesh = meshed{agents: n, took: measure.Now() - began, cpu: x.spent() - spent}
	for _, c := range x.leaves {
		after = after.plus(holds(c))
	}
	x.found.mesh.fds, x.found.mesh.memory = after.fds-before.fds, after.memory-before.memory
	return failed
}

// spent is the processor time of the processes of peers, and of the hub if there is one.
func (x *run) spent() (sum time.Duration) {
	for _, c := range append(slices.Clone(x.leaves), x.hub) {
		if c != nil {
			d, _ := procstat.Of(c.Pid())
			sum += d
		}
	}
	return sum
}

// holds reads what a process holds.
func holds(c *subprocess.Client) (h held) {
	_, _ = subprocess.Call[crowd.None](c, "Settle", crowd.None{}, limit)
	list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.Pid()))
	h.fds = len(list)
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Pid()))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			_, _ = fmt.Sscan(value, &h.memory)
		}
	}
	return h
}

func (h held) plus(o held) held { return held{h.fds + o.fds, h.memory + o.memory} }
