package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"gorail/cmd/gorail/measure"
)

// benchFlags are the flags of gorail bench. A flag with the meaning of a nixlbench flag has nixlbench's name.
type benchFlags struct {
	subjectFlags
	pointFlags
	loopFlags
	placeFlags
	outputFlags
	args []string // as the user gave them
}

// subjectFlags select the backends and limits.
type subjectFlags struct {
	backend, compare string
	limits           []string
}

// pointFlags select the transfers.
type pointFlags struct {
	modes, ops []string
	shapes     string
	startBlock measure.Size
	maxBlock   measure.Size
	startBatch int
	maxBatch   int
	depth      []int
	threads    []int
	dense      bool
	memory     string
	total      measure.Size
}

// loopFlags set how the agents run each point.
type loopFlags struct {
	iterations, warmup uint64
	time, timeout      time.Duration
	repeats            int
	prog               bool
	sync               string
	noNotify           bool
	target             string
	check              bool
}

// placeFlags set where the two sides run and what they load.
type placeFlags struct {
	listen, connect      string
	plugins, wheel, cuda string
}

// outputFlags set the output of the samples.
type outputFlags struct {
	output, json string
	title        string
}

// add defines all flags, in the order of --help.
func (o *benchFlags) add(f *pflag.FlagSet) {
	o.subjectFlags.add(f)
	o.pointFlags.add(f)
	o.loopFlags.add(f)
	o.placeFlags.add(f)
	o.outputFlags.add(f)
}

func (o *subjectFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.backend, "backend", "GORAIL", "backend, as NIXL names its plugin")
	f.StringVar(&o.compare, "compare", "", "backends to compare with the last one; +KEY=VALUE sets a variable or\na parameter: GORAIL,UCX+UCX_TLS=tcp; GORAIL@here runs both processes\nhere in spite of --connect, GORAIL@memfd sets --memory for itself")
	f.StringSliceVar(&o.limits, "limits", slices.Clone(measure.Limits), "limits to measure too; empty: none")
}

func (o *pointFlags) add(f *pflag.FlagSet) {
	o.startBlock, o.maxBlock = 4<<10, 64<<20
	f.StringSliceVar(&o.modes, "mode", []string{"transfer"}, "what to measure: transfer, small, descriptors, notify, idle")
	f.StringSliceVar(&o.ops, "op_type", []string{"WRITE"}, "WRITE, READ or both")
	f.StringVar(&o.shapes, "shapes", "", "exactly these transfers, such as 4K,1M,64x4K; otherwise sizes double between:")
	f.Var(&o.startBlock, "start_block_size", "smallest descriptor")
	f.Var(&o.maxBlock, "max_block_size", "largest descriptor")
	f.IntVar(&o.startBatch, "start_batch_size", 1, "fewest descriptors of a transfer")
	f.IntVar(&o.maxBatch, "max_batch_size", 1, "most descriptors of a transfer")
	f.Var(&o.total, "total_buffer_size", "most memory of a process; larger points are left out (default no limit)")
	f.IntSliceVar(&o.depth, "depth", []int{1}, "transfers in flight of each thread")
	f.IntSliceVar(&o.threads, "num_threads", []int{1}, "threads of the initiator")
	f.StringVar(&o.memory, "memory", "dram", "registered memory: dram (private pages), memfd (a shared memory file)")
	f.BoolVar(&o.dense, "dense", false, "adjacent descriptors, which can be merged (default 4 KiB between them)")
}

func (o *loopFlags) add(f *pflag.FlagSet) {
	f.Uint64Var(&o.iterations, "num_iter", 0, "transfers at each point (default as many as fit into --time)")
	f.Uint64Var(&o.warmup, "warmup_iter", 10, "transfers of each thread before the clock starts")
	f.DurationVar(&o.time, "time", 500*time.Millisecond, "time for each point, backend and repeat")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "a point that takes longer has failed")
	f.IntVar(&o.repeats, "repeats", 3, "pairs of processes for each backend")
	f.BoolVar(&o.prog, "enable_pt", false, "progress thread")
	f.StringVar(&o.sync, "sync", "", "sync mode of the agents: none, strict, rw (default rw with several threads, else none)")
	f.BoolVar(&o.noNotify, "no_notif", false, "no notification with the transfers")
	f.StringVar(&o.target, "target", "polls", "the target polls its notifications, naps 1 ms between polls, or sleeps (calls nothing)")
	f.BoolVar(&o.check, "check_consistency", true, "compare the bytes of every point")
}

func (o *placeFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "listen", "", "host:port: serve targets for gorail bench --connect; only for networks whose hosts trust each other")
	f.StringVar(&o.connect, "connect", "", "host:port of gorail bench --listen")
	f.StringVar(&o.plugins, "plugins", "", "plugin folder for all backends (default GORAIL's own, and the wheel's)")
	f.StringVar(&o.cuda, "cuda", "", "of several NIXL wheels in one folder, take the one for this CUDA version: 12, 13")
	f.StringVar(&o.wheel, "wheel", "", "site-packages with a NIXL wheel (default NIXL_WHEEL_DIR, then what python3 imports)")
}

func (o *outputFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.output, "output", "table", "table, csv or json")
	f.StringVar(&o.json, "json", "", "also write the run to this file; gorail report and gorail page read it")
	f.StringVar(&o.title, "title", "Benchmark", "title of the run in a report")
}

// points returns the points that the flags select.
func (o *benchFlags) points() (out []measure.Point, err error) {
	for i, op := range o.ops {
		if o.ops[i] = strings.ToUpper(op); o.ops[i] != "WRITE" && o.ops[i] != "READ" {
			return nil, fmt.Errorf("--op_type %q: want WRITE or READ", op)
		}
	}
	for _, n := range append(append([]int{o.startBatch, o.maxBatch, o.repeats}, o.depth...), o.threads...) {
		if n < 1 {
			return nil, errors.New("batches, --depth, --num_threads and --repeats must be 1 or more")
		}
	}
	if o.startBlock == 0 {
		return nil, errors.New("--start_block_size must be 1 or more")
	}
	all := measure.Sweep{Ops: o.ops, StartBatch: 1, MaxBatch: 1, Depths: []int{1}, Threads: []int{1}, Dense: o.dense, Total: uint64(o.total)}
	for _, mode := range o.modes {
		s := all
		switch mode {
		case "transfer":
			s.StartBlock, s.MaxBlock, s.StartBatch, s.MaxBatch = uint64(o.startBlock), uint64(o.maxBlock), o.startBatch, o.maxBatch
			s.Depths, s.Threads = o.depth, o.threads
			if o.shapes != "" {
				shapes, err := measure.ParseShapes(o.shapes, o.ops, o.dense)
				if err != nil {
					return nil, fmt.Errorf("--shapes: %w", err)
				}
				out = append(out, measure.Load(shapes, s.Depths, s.Threads)...)
				continue
			}
		case "small":
			s.StartBlock, s.MaxBlock, s.BlockStep = 64, 16<<10, 4
			s.Depths, s.Threads = []int{1, 4, 16, 64}, []int{1, 2, 4, 8}
		case "descriptors":
			s.StartBlock, s.MaxBlock, s.MaxBatch, s.BatchStep = 1<<10, 1<<10, 1<<16, 4
		case "notify":
			out = append(out, measure.Point{Op: "NOTIFY", Block: 16, Batch: 1, Depth: 1, Threads: 1})
			continue
		case "idle":
			out = append(out, measure.Point{Op: "IDLE", Batch: 1, Depth: 1, Threads: 1})
			continue
		default:
			return nil, fmt.Errorf("--mode %q: want transfer, small, descriptors, notify or idle", mode)
		}
		out = append(out, s.Points()...)
	}
	if len(out) == 0 {
		return nil, errors.New("the flags leave nothing to measure: check sizes, batches and --total_buffer_size")
	}
	return out, nil
}
