// Package rails is the study of rails: each alone and all together, beside what the links should give.
package rails

import (
	"context"
	"fmt"
	"math"
	"strings"

	"gorail/gorail/bench/cuda"
	"gorail/gorail/measure"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
)

// link is a rail with what it should give.
type link struct {
	name   string
	fabric string
	gbps   float64 // expected, 10^9 bytes a second; NaN: unknown
	why    string  // what the expectation is made of, and what caps it
}

// set is some of the rails.
type set struct {
	title string
	rails []link
	gbps  float64 // expected
}

// study is one run.
type study struct {
	*env.Env
	busy  bool // other programs keep the cores busy
	links []link
	sets  []set
	runs  []*measure.Run
	mem   []string // of each run: "host memory", "GPU 0"
}

// Run checks the links, measures, and fills in the result.
func Run(ctx context.Context, e *env.Env, r *result.Result) error {
	s := &study{Env: e}
	quiet := env.Quiet()
	s.busy = quiet.Status != "PASS"
	r.Checks = append(r.Checks, quiet)
	if err := s.check(r); err != nil {
		return err
	}
	s.makeSets()
	s.measure(ctx, r)
	s.fill(r)
	return ctx.Err()
}

// makeSets makes the sets: each rail, and all.
func (s *study) makeSets() {
	add := func(rails ...link) {
		var names []string
		for _, l := range rails {
			names = append(names, l.name)
		}
		s.sets = append(s.sets, set{strings.Join(names, "+"), rails, together(rails)})
	}
	n := len(s.links)
	for _, l := range s.links {
		add(l)
	}
	if n > 1 {
		add(s.links...)
		s.sets[len(s.sets)-1].title = "all"
	}
	if s.Effort == env.Smallest && n > 1 { // the first alone, and all
		s.sets = []set{s.sets[0], s.sets[len(s.sets)-1]}
	}
}

// together is what several rails should give.
func together(rails []link) (sum float64) {
	for _, l := range rails {
		sum += l.gbps
	}
	return sum
}

// subjects are the sets over GORAIL, and over UCX.
func (s *study) subjects() (out []measure.Subject) {
	for _, t := range s.sets {
		var names []string
		for _, l := range t.rails {
			names = append(names, l.name)
		}
		out = append(out, measure.Subject{Title: t.title, Backend: "GORAIL", Params: map[string]string{"provider": fabrics(t.rails), "devices": strings.Join(names, ",")}})
	}
	for _, t := range s.sets {
		alone := s.Peer.Given() && len(s.links) > 1 // variables of the peer's processes are set where they are started
		if !s.Has("UCX") || t.title != "all" && (len(t.rails) != 1 || alone) {
			continue
		}
		out = append(out, measure.Subject{Title: "UCX " + t.title, Backend: "UCX", Env: s.ucx(t)})
	}
	return out
}

// ucx are the variables that hold UCX to the rails of a set. All rails of a machine are UCX's own choice.
func (s *study) ucx(t set) map[string]string {
	if t.title == "all" || s.Peer.Given() {
		return nil
	}
	var names []string
	for _, l := range t.rails {
		name := l.name
		if l.fabric == "verbs" {
			name += ":1"
		}
		names = append(names, name)
	}
	return map[string]string{"UCX_NET_DEVICES": strings.Join(names, ",")}
}

func fabrics(rails []link) string {
	var out []string
	for _, l := range rails {
		if !strings.Contains(","+strings.Join(out, ",")+",", ","+l.fabric+",") {
			out = append(out, l.fabric)
		}
	}
	return strings.Join(out, ",")
}

// large is the size from which a few transfers are enough.
const large = 16 << 20

// sizes are the sizes of transfers.
func (s *study) sizes() (out []uint64) {
	first, step, most := uint64(4<<10), env.Pick(s.Env, uint64(4), 16, 64), uint64(1<<30)
	if s.Effort != env.Full {
		most = 64 << 20
	}
	if s.Effort == env.Smallest {
		first, most = 64<<10, 4<<20
	}
	for n := first; n <= most; n *= step {
		out = append(out, n)
	}
	if last := out[len(out)-1]; last != most {
		out = append(out, most)
	}
	return out
}

// measure runs all points: small and large sizes have paces of their own.
func (s *study) measure(ctx context.Context, r *result.Result) {
	kinds := []struct {
		name, memory string
		gpus         []int
	}{{"host memory", "dram", nil}}
	for _, id := range gpus() {
		kinds = append(kinds, struct {
			name, memory string
			gpus         []int
		}{fmt.Sprintf("memory of GPU %d", id), "vram", []int{id}})
	}
	var ops [][]measure.Point
	for _, big := range []bool{false, true} {
		var points []measure.Point
		for _, op := range []string{"WRITE", "READ"} {
			for _, n := range s.sizes() {
				if (n >= large) == big {
					points = append(points, measure.Point{Op: op, Block: n, Batch: 1, Depth: 1, Threads: 1})
				}
			}
		}
		ops = append(ops, points)
	}
	for _, k := range kinds {
		all := &measure.Run{}
		for i, points := range ops {
			if len(points) == 0 || ctx.Err() != nil {
				continue
			}
			subjects := s.subjects()
			if k.memory != "dram" {
				subjects = onlyGORAIL(subjects)
			}
			c := s.Config(subjects, points)
			c.Memory, c.GPUs = k.memory, k.gpus
			if i == 1 {
				c.Pace.Warmup = 2
			}
			r.Setup = s.Setup(c)
			run := s.Bench(ctx, c, r)
			all.Samples, all.Subjects = append(all.Samples, run.Samples...), run.Subjects
		}
		s.runs, s.mem = append(s.runs, all), append(s.mem, k.name)
	}
}

func onlyGORAIL(all []measure.Subject) (out []measure.Subject) {
	for _, x := range all {
		if x.Backend == "GORAIL" {
			out = append(out, x)
		}
	}
	return out
}

// gpus are the numbers of this machine's GPUs.
func gpus() (out []int) {
	d, err := cuda.Open()
	if err != nil {
		return nil
	}
	for id := range d.GPUs() {
		out = append(out, id)
	}
	return out
}

var unknown = math.NaN()
