package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gorail/cmd/gorail/measure"
	"gorail/cmd/gorail/report"
	"gorail/cmd/gorail/side"
)

// benchFlags are those of gorail bench. Where nixlbench has a flag of the same meaning, the name is its.
type benchFlags struct {
	backend, compare string
	limits           []string
	modes, ops       []string
	shapes           string
	startBlock       measure.Size
	maxBlock         measure.Size
	startBatch       int
	maxBatch         int
	depth            []int
	threads          []int
	dense            bool
	total            measure.Size

	iterations, warmup uint64
	time, timeout      time.Duration
	repeats            int
	prog               bool
	sync               string
	noNotify           bool
	target             string
	check              bool

	listen, connect string
	plugins, wheel  string
	output, json    string
	title           string
	args            []string // as they were given
}

func benchCommand() *cobra.Command {
	o := benchFlags{startBlock: 4 << 10, maxBlock: 64 << 20}
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure backends of NIXL with real agents in two processes, beside what the machine can do",
		Long: `Drives real NIXL agents through libnixl_capi.so. Each backend has a pair of processes of its own that lives only in its turn; backends and
limits (memcpy, process_vm, plain TCP) take turns within a run, several times over, and ratios are given with their spread. The timed
loops are in C. Modes: transfer (sizes and batches), small (64 B .. 16 KiB, 1 .. 64 in flight, 1 .. 8 threads), descriptors (1 .. 65,536 of
1 KiB), notify, idle.`,
		Example: `  gorail bench --compare GORAIL,UCX --shapes 4K,1M,64x4K
  gorail bench --compare GORAIL,UCX+UCX_TLS=tcp --op_type READ --enable_pt
  gorail bench --listen :18515          # on one host, and on the other:
  gorail bench --connect other:18515 --compare GORAIL,UCX`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.listen != "" {
				l, err := net.Listen("tcp", o.listen)
				if err != nil {
					return err
				}
				c.PrintErrf("targets for gorail bench --connect %s\n", l.Addr())
				return side.Listen(l)
			}
			c.Flags().Visit(func(f *pflag.Flag) { o.args = append(o.args, "--"+f.Name+"="+quote(f.Value.String())) })
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return o.run(ctx, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.backend, "backend", "GORAIL", "backend, as NIXL names its plugin")
	f.StringVar(&o.compare, "compare", "", "backends to compare instead, with the last; +KEY=VALUE sets a variable or\na parameter: GORAIL,UCX+UCX_TLS=tcp")
	f.StringSliceVar(&o.limits, "limits", slices.Clone(measure.Limits), "limits beside them; an empty list for none")
	f.StringSliceVar(&o.modes, "mode", []string{"transfer"}, "what to measure: transfer, small, descriptors, notify, idle")
	f.StringSliceVar(&o.ops, "op_type", []string{"WRITE"}, "WRITE, READ or both")
	f.StringVar(&o.shapes, "shapes", "", "exactly these transfers, such as 4K,1M,64x4K; or blocks and batches that double:")
	f.Var(&o.startBlock, "start_block_size", "smallest descriptor")
	f.Var(&o.maxBlock, "max_block_size", "largest descriptor")
	f.IntVar(&o.startBatch, "start_batch_size", 1, "fewest descriptors of a transfer")
	f.IntVar(&o.maxBatch, "max_batch_size", 1, "most descriptors of a transfer")
	f.Var(&o.total, "total_buffer_size", "most memory of a process; what needs more is left out (default no limit)")
	f.IntSliceVar(&o.depth, "depth", []int{1}, "transfers in flight of each thread")
	f.IntSliceVar(&o.threads, "num_threads", []int{1}, "threads of the initiator")
	f.BoolVar(&o.dense, "dense", false, "descriptors touch, so that they can be merged (default 4 KiB between them)")
	f.Uint64Var(&o.iterations, "num_iter", 0, "transfers at each point (default as many as fit into --time)")
	f.Uint64Var(&o.warmup, "warmup_iter", 10, "transfers of each thread before the clock starts")
	f.DurationVar(&o.time, "time", 500*time.Millisecond, "time for each point, backend and repeat")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "a point that takes longer has failed")
	f.IntVar(&o.repeats, "repeats", 3, "pairs of processes for each backend")
	f.BoolVar(&o.prog, "enable_pt", false, "progress thread")
	f.StringVar(&o.sync, "sync", "", "sync mode of the agents: none, strict, rw (default rw with several threads, else none)")
	f.BoolVar(&o.noNotify, "no_notif", false, "no notification with the transfers")
	f.StringVar(&o.target, "target", "polls", "what the target does: polls its notifications, naps 1 ms between polls, or sleeps (calls nothing)")
	f.BoolVar(&o.check, "check_consistency", true, "compare the bytes of every point")
	f.StringVar(&o.listen, "listen", "", "host:port: be the target's host for gorail bench --connect; for networks whose hosts trust each other")
	f.StringVar(&o.connect, "connect", "", "host:port where gorail bench --listen runs")
	f.StringVar(&o.plugins, "plugins", "", "plugin folder for all backends (default GORAIL's own, and the wheel's)")
	f.StringVar(&o.wheel, "wheel", "", "site-packages with a NIXL wheel (default NIXL_WHEEL_DIR, then what python3 imports)")
	f.StringVar(&o.output, "output", "table", "table, csv or json")
	f.StringVar(&o.json, "json", "", "also write the run to this file; gorail report and gorail page read it")
	f.StringVar(&o.title, "title", "Benchmark", "what the run is called in a report")
	return c
}

// points are what the flags ask for.
func (o *benchFlags) points() (out []measure.Point, err error) {
	for i, op := range o.ops {
		if o.ops[i] = strings.ToUpper(op); o.ops[i] != "WRITE" && o.ops[i] != "READ" {
			return nil, fmt.Errorf("--op_type %q: WRITE or READ", op)
		}
	}
	for _, n := range append(append([]int{o.startBatch, o.maxBatch, o.repeats}, o.depth...), o.threads...) {
		if n < 1 {
			return nil, errors.New("batches, --depth, --num_threads and --repeats are 1 or more")
		}
	}
	if o.startBlock == 0 {
		return nil, errors.New("--start_block_size is 1 or more")
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
			return nil, fmt.Errorf("--mode %q: transfer, small, descriptors, notify or idle", mode)
		}
		out = append(out, s.Points()...)
	}
	if len(out) == 0 {
		return nil, errors.New("the flags leave nothing to measure: look at sizes, batches and --total_buffer_size")
	}
	return out, nil
}

func (o *benchFlags) run(ctx context.Context, out, log io.Writer) error {
	if outputs[o.output] == nil {
		return fmt.Errorf("--output %q: table, csv or json", o.output)
	}
	c, err := o.config()
	if err != nil {
		return err
	}
	names := func(limit bool) (out []string) {
		for _, s := range c.Subjects {
			if (s.Backend == "") == limit {
				out = append(out, s.Title)
			}
		}
		return out
	}
	r := &measure.Run{When: time.Now().UTC(), Command: "gorail bench " + strings.Join(o.args, " "), Machine: report.Machine(), Title: o.title,
		Setup: o.setup(c), Repeats: o.repeats, Subjects: names(false), Limits: names(true)}

	failed := 0
	bar := newProgress(log, c.Steps())
	c.Step = bar.step
	c.Warn = func(subject string, why error) {
		failed++
		bar.say(fmt.Sprintf("%s: %v", subject, why))
	}
	r.Samples, r.Pairs, r.Versions = c.Run(ctx)
	bar.end()

	if o.json != "" {
		if err := writeFile(o.json, func(w io.Writer) error { return report.JSON(w, r) }); err != nil {
			return err
		}
	}
	if err := outputs[o.output](out, r); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d points failed", failed)
	}
	return cmp.Or(ctx.Err(), nil)
}

var outputs = map[string]func(io.Writer, *measure.Run) error{"table": report.Text, "csv": report.CSV, "json": report.JSON}

// writeFile makes a file of what f writes.
func writeFile(path string, f func(io.Writer) error) error {
	w, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(f(w), w.Close())
}
