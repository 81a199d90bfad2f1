// Package weights is the study of a trainer that hands its weights to inference workers, which happens after each step of reinforcement learning.
package weights

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"gorail/gorail/bench/cuda"
	"gorail/gorail/cli"
	"gorail/gorail/drive"
	"gorail/gorail/measure"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/weights/rank"
	"gorail/internal/subprocess"
	"gorail/nixlapi"
)

// Options are the study's own flags.
type Options struct {
	Workers, FanOut int
	Scale           uint64 // 0: as the effort and the memory say
	Models          []string
	Memory          string // dram, vram; "": vram if there are two GPUs
}

// study is one run.
type study struct {
	*env.Env
	Options
	gpus   int
	models []rank.Model
	r      *result.Result
	tables []result.Table     // of the model
	rates  map[string]float64 // of the model, by layout, way and backend
}

// layouts are how a rank has its tensors.
var layouts = []string{"tensors", "arena", "resharded"}

const limit = 2 * time.Minute // of a refit, and of other commands

// Run measures, and fills in the result.
func Run(ctx context.Context, e *env.Env, o Options, r *result.Result) error {
	s := &study{Env: e, Options: o, r: r}
	if err := s.settle(); err != nil {
		return cli.Usage("%v", err)
	}
	r.Checks = append(r.Checks, env.Quiet())
	backends := []string{"GORAIL"}
	if e.Has("UCX") {
		backends = append(backends, "UCX")
	}
	e.Progress.Expect(len(s.models) * len(layouts) * len(backends))
	for _, m := range s.models {
		s.begin()
		for _, layout := range layouts {
			for _, backend := range backends {
				if ctx.Err() != nil {
					break
				}
				name := m.Name + ", " + layout + ", " + backend
				s.Progress.Step(name)
				if err := s.variant(ctx, m, layout, backend); err != nil && !drive.Interrupted(ctx) {
					e.Fail(r, name, err)
					if backend == "GORAIL" {
						e.Lost++
					}
				}
			}
		}
		s.end(m)
	}
	return ctx.Err()
}

// settle checks the options and fills in what the user left open.
func (s *study) settle() error {
	d, err := cuda.Open()
	if err == nil {
		s.gpus = d.GPUs()
	}
	if s.Memory == "" {
		s.Memory = "dram"
		if s.gpus > 1 {
			s.Memory = "vram"
		}
	}
	vram := s.Memory == "vram"
	switch {
	case s.Memory != "dram" && !vram:
		return fmt.Errorf("--memory %q: want dram or vram", s.Memory)
	case vram && s.gpus == 0:
		return fmt.Errorf("--memory vram: this process sees no GPU: %w", err)
	case s.Workers == 0 && vram:
		s.Workers = min(3, max(1, s.gpus-1))
	case s.Workers == 0:
		s.Workers = 1
	}
	if s.Workers < 1 || s.Workers > 3 || s.FanOut < 1 {
		return fmt.Errorf("--workers %d --fan-out %d: want 1 to 3 workers, and a fan-out of 1 at least", s.Workers, s.FanOut)
	}
	if len(s.Models) == 0 {
		s.Models = env.Pick(s.Env, []string{"llama-8b", "llama-70b-tp8"}, []string{"llama-8b", "llama-70b-tp8"}, []string{"llama-8b"})
	}
	for _, name := range s.Models {
		i := slices.IndexFunc(rank.Models, func(m rank.Model) bool { return m.Name == name })
		if i < 0 {
			return fmt.Errorf("--model: no model %q: want %s", name, rank.ModelNames())
		}
		s.models = append(s.models, rank.Models[i])
	}
	where := "host memory"
	scale := env.Pick(s.Env, uint64(16), 64, 1024)
	if vram {
		scale, where = env.Pick(s.Env, uint64(1), 1, 1024), fmt.Sprintf("memory of %d GPUs", min(s.gpus, s.Workers+1))
	}
	s.Scale = cmp.Or(s.Scale, scale)
	s.r.Setup = fmt.Sprintf("a trainer and %d workers, each a process on this host with %s; matrices have one of %d of their rows; UCX with NIXL_UCX_SGL_ENABLE=y; progress threads on", s.Workers, where, s.Scale)
	return nil
}

// member is one process: the trainer is the first.
type member struct {
	*subprocess.Client
	rank.Peer
}

// start starts the trainer and the workers.
func (s *study) start(m rank.Model, layout, backend string) (all []*member, err error) {
	for i := range s.Workers + 1 {
		in := rank.OpenArgs{Name: "trainer", Backend: backend, Wheel: s.Wheel, PluginDir: s.PluginDir(backend), Memory: s.Memory, Arena: layout == "arena", GPU: i % max(1, s.gpus), Half: rank.Whole, Model: m, Scale: s.Scale,
			Env: map[string]string{"NIXL_UCX_SGL_ENABLE": "y"}} // with which UCX takes lists at its best
		if i > 0 {
			in.Name = fmt.Sprintf("worker-%d", i-1)
			if layout == "resharded" {
				in.Half = (i - 1) % 2
			}
		}
		c, err := subprocess.Start(subprocess.Options{Args: []string{rank.Command}}, rank.Service)
		if err != nil {
			return all, err
		}
		all = append(all, &member{c, rank.Peer{Name: in.Name}})
		if all[i].Peer, err = subprocess.Call[rank.Peer](c, "Open", in, limit); err != nil {
			return all, fmt.Errorf("%s: %w", in.Name, err)
		}
	}
	s.r.Versions = "gorail " + s.Version + ", " + all[0].Versions
	if gpu := all[0].Device; gpu != "" && !strings.Contains(s.r.Machine, gpu) {
		s.r.Machine += "; " + gpu
	}
	return all, nil
}

// each gives members a command at the same time. It returns the sum of what they did, from the first begin to the last end.
func each(all []*member, method string, args func(i int) any) (sum rank.Out, err error) {
	var calls []*subprocess.Future[rank.Out]
	for i, m := range all {
		calls = append(calls, subprocess.Go[rank.Out](m.Client, method, args(i), limit+time.Minute))
	}
	for i, c := range calls {
		out, failed := c.Result()
		if failed != nil && err == nil {
			err = fmt.Errorf("%s: %w", all[i].Name, failed)
			for _, m := range all { // they would wait for it
				m.Kill()
			}
		}
		sum.Requests, sum.Ranges, sum.Bytes, sum.Make = sum.Requests+out.Requests, sum.Ranges+out.Ranges, sum.Bytes+out.Bytes, sum.Make+out.Make
		if sum.Ended = max(sum.Ended, out.Ended); sum.Began == 0 || out.Began > 0 && out.Began < sum.Began {
			sum.Began = out.Began
		}
		sum.Calls.Add(out.Calls)
	}
	return sum, err
}

// way is how tensors move: to whom each member writes, or that workers read.
type way struct {
	name     string
	read     bool
	prepared bool // make_xfer_req over prepared lists, otherwise create_xfer_req
	fanOut   int
}

// args are those of the member's commands.
func (w way) args(i int, all []*member) rank.Args {
	in := rank.Args{Op: nixlapi.Read, Prepared: w.prepared, Post: true, Limit: limit}
	if w.read {
		in.Peers = []rank.Peer{all[0].Peer}
		return in
	}
	in.Op, in.Post, in.Take = nixlapi.Write, i == 0, i > 0
	for k := w.fanOut*i + 1; k <= w.fanOut*(i+1) && k < len(all); k++ {
		in.Peers = append(in.Peers, all[k].Peer)
	}
	return in
}

// variant measures one layout of a model with one backend.
func (s *study) variant(ctx context.Context, m rank.Model, layout, backend string) error {
	all, err := s.start(m, layout, backend)
	defer func() {
		for _, p := range all {
			_, _ = subprocess.Call[struct{}](p.Client, "Close", struct{}{}, 20*time.Second)
			p.End(5 * time.Second)
		}
	}()
	if err != nil {
		return err
	}
	for i, m := range all[:2] {
		what := "trainer, the first process"
		if i > 0 {
			what = "worker, a later one"
		}
		t := m.Register
		s.row(registration, layout, what, backend, m.Regions, m.Handles, 1e3*ms(t.First), ms(t.All), ms(t.Again), 1e3*ms(t.Again)/float64(m.Regions))
	}
	ways := []way{{name: "READ", read: true}, {name: "READ, prepared lists", read: true, prepared: true}, {name: "WRITE", fanOut: s.Workers}}
	if s.Workers == 3 && layout != "resharded" && s.FanOut < 3 { // halves differ, so none could send its own on
		ways = append(ways, way{name: fmt.Sprintf("WRITE, tree of fan-out %d", s.FanOut), fanOut: s.FanOut})
	}
	if backend == "GORAIL" {
		if err := s.copies(all, layout); err != nil {
			return fmt.Errorf("plain copies: %w", err)
		}
	}
	for i, w := range ways {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := s.refits(all, w, uint64(i+1), layout, backend); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		if w.read {
			if err := s.reposts(all, w, layout, backend); err != nil {
				return fmt.Errorf("%s of %d small requests: %w", w.name, rank.Reposted, err)
			}
		}
		if w.read && !w.prepared {
			if err := s.beside(all, layout, backend); err != nil {
				return fmt.Errorf("registering while a worker reads: %w", err)
			}
		}
	}
	return nil
}

// refits moves all tensors some times in one way, and compares the bytes.
func (s *study) refits(all []*member, w way, seed uint64, layout, backend string) error {
	movers, skip := all, 0
	if w.read {
		movers, skip = all[1:], 1
	}
	args := func(i int) any { return w.args(i+skip, all) }
	if _, err := subprocess.Call[struct{}](all[0].Client, "Fill", seed, limit); err != nil {
		return err
	}
	made, err := each(movers, "Prepare", args)
	if err != nil {
		return err
	}
	var first time.Duration
	var took, bytes, posts = []time.Duration{}, uint64(0), measure.Times{}
	began := time.Now()
	for i := range 1 + cmp.Or(s.Repeats, env.Pick(s.Env, 10, 5, 2)) {
		if i > 1 && time.Since(began) > 20*time.Second { // slow ones have fewer repeats
			break
		}
		out, err := each(movers, "Move", args)
		if err != nil {
			return err
		}
		if i == 0 {
			first = out.Ended - out.Began
			continue
		}
		took, bytes = append(took, out.Ended-out.Began), out.Bytes
		posts.Add(out.Calls)
	}
	slices.Sort(took)
	median := took[len(took)/2]
	if _, err := each(all[1:], "Check", func(int) any { return seed }); err != nil {
		return err
	}
	rate := float64(bytes) / 1e9 / median.Seconds()
	s.rates[layout+", "+w.name+backend] = rate
	limit := result.Cell{}
	if copied := s.rates[layout+" copied"]; copied > 0 {
		limit = result.Num(rate / copied)
	}
	s.row(refits, layout, w.name, backend, made.Requests, made.Ranges, float64(bytes)/1e9, rate, limit, ms(median), ms(first), 1e3*ms(made.Make)/float64(made.Requests), env.Micros(&posts, 0.5), posts.Mean()/1e3)
	return nil
}

// copies lets all workers copy as many bytes to their tensors at the same time, without an agent, by the driver or by memcpy: in one thread, and in as
// many as copy for an engine in shared memory: the application's, the progress thread, and those of copy_threads.
func (s *study) copies(all []*member, layout string) error {
	span := cmp.Or(s.Time, env.Pick(s.Env, time.Second, 300*time.Millisecond, 20*time.Millisecond))
	how, threads := "cuMemcpyAsync", []int{1}
	if s.Memory == "dram" {
		how, threads = "memcpy", []int{1, 2 + min(max(runtime.NumCPU()/4, 1), 4)}
	}
	for _, n := range threads {
		out, err := each(all[1:], "Copy", func(int) any { return rank.Args{Peers: []rank.Peer{all[0].Peer}, Threads: n, Time: span} })
		if err != nil {
			return err
		}
		rate := float64(out.Bytes) / 1e9 / (out.Ended - out.Began).Seconds()
		s.rates[layout+" copied"] = rate // the last one is that of as many threads as an engine has
		s.row(plain, layout, how, n, len(all)-1, rate)
	}
	return nil
}

// reposts lets one worker post small requests again and again.
func (s *study) reposts(all []*member, w way, layout, backend string) error {
	in := rank.Args{Peers: []rank.Peer{all[0].Peer}, Prepared: w.prepared, Limit: limit, Time: cmp.Or(s.Time, env.Pick(s.Env, 2*time.Second, 500*time.Millisecond, 20*time.Millisecond))}
	out, err := subprocess.Call[rank.RepostOut](all[1].Client, "Repost", in, limit+time.Minute)
	if err != nil {
		return err
	}
	through, objects := result.Cell{}, result.Cell{}
	if out.Counted {
		through, objects = result.Num(float64(out.ThroughGo)), result.Num(out.Objects)
	}
	s.row(reposts, layout, w.name, backend, out.Requests, int(out.Size), 1e3*ms(out.Make)/float64(out.Requests), int(out.Posts.Count()), env.Micros(&out.Posts, 0.5), out.Posts.Mean()/1e3,
		env.Micros(&out.Posts, 0.99), env.Micros(&out.Copies, 0.5), env.Micros(&out.Turn, 0.5), through, objects)
	_, err = subprocess.Call[rank.Out](all[1].Client, "Prepare", w.args(1, all), limit) // of the whole tensors again
	return err
}
