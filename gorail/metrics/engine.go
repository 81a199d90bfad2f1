package metrics

import (
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gorail/backend/stats"
)

// engine sends what an engine answered.
func (p *printer) engine(l *stats.Live) {
	p.put(info, 1, label(l.Version), label(l.Command), label(l.Host))
	p.put(started, float64(l.Started.UnixMicro())/1e6)
	p.put(inFlight, float64(len(l.Transfers)+l.LeftOut))
	age, idle := 0.0, 0.0
	if len(l.Transfers) > 0 { // the oldest is the first
		age, idle = l.Transfers[0].Age, max(0, time.Duration(l.Transfers[0].Idle).Seconds())
	}
	p.put(oldest, age)
	p.put(oldestIdle, idle)
	p.sessions(l.Peers)
	for name, hits := range l.Limits {
		p.put(limitHits, float64(hits), label(name))
	}
	p.put(staged, float64(l.Staged.Transfers))
	p.put(stagedBytes, float64(l.Staged.Bytes))
	p.put(stagedCopies, float64(l.Staged.Copies))
	p.put(stagedPacked, float64(l.Staged.Packed))
	p.put(stagedTo, float64(l.Staged.PackedBytes))
	for _, t := range l.Staged.Times {
		p.histogram(stagedSeconds, t)
	}
	p.put(capsRefused, float64(l.CapsRefused))
	p.put(nameConflicts, float64(l.NameConflicts))
	p.put(versions, float64(l.PeersRefusedVersion))
	for _, n := range ofCore {
		if v, ok := l.Core[n.key]; ok {
			p.put(n.family, float64(v))
		}
	}
	control, _ := l.Control.(map[string]any)
	for _, n := range ofControl {
		if v, ok := control[n.key].(float64); ok {
			p.put(n.family, v, n.labels...)
		}
	}
	p.rails(l)
}

func (p *printer) sessions(peers []stats.Peer) {
	type kind struct {
		direction stats.Direction
		state     string
	}
	count := map[kind]int{}
	for i := range peers {
		count[kind{peers[i].Direction, peers[i].State}]++
	}
	for _, d := range directions {
		for _, s := range sessionStates {
			p.put(sessions, float64(count[kind{d, s}]), string(d), s)
		}
	}
}

// queues are the sums over the links of a rail.
type queues struct {
	window, ops, credits, messages, transfers, starved uint64

	phases map[string]int
}

func (p *printer) rails(l *stats.Live) {
	sums := map[int]*queues{}
	for i := range l.Rails {
		sums[l.Rails[i].Index] = &queues{phases: map[string]int{}}
	}
	for i := range l.Peers {
		for _, k := range l.Peers[i].Links {
			if q := sums[k.Index]; q != nil && !l.Peers[i].Ended() {
				q.add(&k)
			}
		}
	}
	seen := map[string]bool{}
	for i := range l.Rails {
		r := &l.Rails[i]
		name := label(r.Name)
		if seen[name] {
			name = fmt.Sprintf("%s#%d", name, r.Index)
		}
		seen[name] = true
		p.rail(r, name)
		p.queues(sums[r.Index], name)
	}
}

func (q *queues) add(k *stats.Link) {
	q.window += k.Window
	q.ops += uint64(k.Ops)
	q.credits += uint64(k.Credits)
	q.messages += uint64(k.Messages)
	q.transfers += uint64(k.Transfers)
	q.phases[k.Phase]++
	if k.Phase == stats.Working && k.Credits == 0 && k.Messages > 0 {
		q.starved++
	}
}

func (p *printer) queues(q *queues, name string) {
	for _, phase := range phases {
		p.put(railLinks, float64(q.phases[phase]), name, phase)
	}
	p.put(railWindow, float64(q.window), name)
	p.put(railOps, float64(q.ops), name)
	p.put(railCredits, float64(q.credits), name)
	p.put(railNoCredit, float64(q.starved), name)
	p.put(railMessages, float64(q.messages), name)
	p.put(railQueued, float64(q.transfers), name)
}

func (p *printer) rail(r *stats.Rail, name string) {
	p.put(railInfo, 1, name, label(r.Device), label(r.Fabric))
	for _, s := range railStates {
		is := 0.0
		if s == r.State {
			is = 1
		}
		p.put(railState, is, name, string(s))
	}
	if r.Mbps > 0 {
		p.put(railNominal, float64(r.Mbps)*1e6/8, name)
	}
	if r.Idle >= 0 {
		p.put(railIdle, time.Duration(r.Idle).Seconds(), name)
	}
	for _, f := range ofRail {
		p.put(f.family, float64(f.value(r)), name)
	}
	for _, t := range r.Times {
		p.histogram(railSeconds, t, name)
		p.put(railUntimed, float64(t.Coarse), name, sizeClass(t.Most))
	}
}

// histogram sends transfer times. Times below a bound count as up to it. The engine does not add up the times: each counts
// in the sum as the middle of its bucket, and as the least of the last bucket.
func (p *printer) histogram(f family, t stats.Times, labels ...string) {
	buckets := make(map[float64]uint64, stats.TimeBuckets-1)
	var below uint64
	sum := 0.0
	for i := range stats.TimeBuckets {
		var n uint64
		if i < len(t.Buckets) {
			n = t.Buckets[i]
		}
		below += n
		bound := math.Ldexp(1e-6, i)
		if i == stats.TimeBuckets-1 {
			sum += float64(n) * bound / 2
			break
		}
		buckets[bound] = below
		sum += float64(n) * bound * 0.75
	}
	m, err := prometheus.NewConstHistogram(f.desc, below, sum, buckets, p.labels(append(labels, sizeClass(t.Most)))...)
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	p.to <- m
}

// sizeClass names the largest size of a class.
func sizeClass(most uint64) string {
	switch {
	case most == 0:
		return "larger"
	case most%(1<<20) == 0:
		return fmt.Sprintf("%dMiB", most>>20)
	}
	return fmt.Sprintf("%dKiB", most>>10)
}
