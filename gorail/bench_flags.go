package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gorail/gorail/bench/layout"
	"gorail/gorail/cli"
	"gorail/gorail/door"
	"gorail/gorail/measure"
	"gorail/gorail/page"
)

// benchFlags are the flags of gorail bench. A flag with the meaning of a nixlbench flag has nixlbench's name.
type benchFlags struct {
	subjectFlags
	pointFlags
	loopFlags
	placeFlags
	processFlags
	layoutFlags
	outputFlags
	args    []string               // as the user gave them
	changed func(name string) bool // the user gave the flag; nil: none
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
	agents     []int
	total      measure.Size
}

// layoutFlags set how the transfers' descriptors lie in memory.
type layoutFlags struct {
	layout    string
	blockSize measure.Size
	blocks    int
	ids       string
	pool      int
}

// processFlags set which processes there are, and their memory.
type processFlags struct {
	memory, initiatorType, targetType string
	vmm                               bool
	gpus                              []int
}

// loopFlags set how the agents run each point.
type loopFlags struct {
	iterations, warmup uint64
	time, timeout      time.Duration
	repeats            int
	prog               bool
	target             string
	check              bool
}

// placeFlags set where the two sides run and what they load.
type placeFlags struct {
	listen               string
	connect              door.Place
	plugins, wheel, cuda string
}

// outputFlags set the output of the samples.
type outputFlags struct {
	page.Flags
	title string
	wide  bool
}

// add defines all flags, in the order of --help.
func (o *benchFlags) add(c *cobra.Command) {
	for _, g := range []struct {
		title string
		add   func(*pflag.FlagSet)
	}{
		{"Backends", o.subjectFlags.add}, {"Transfers", o.pointFlags.add}, {"Blocks of a KV cache, instead of sizes", o.layoutFlags.add}, {"Memory", o.processFlags.add},
		{"How long, and how", o.loopFlags.add}, {"Where", o.placeFlags.add}, {"Output", o.outputFlags.add},
	} {
		cli.Group(c.Flags(), g.title, g.add)
	}
	var models []string
	for _, m := range layout.Models {
		models = append(models, m.Name)
	}
	for flag, words := range map[string][]string{
		"limits": measure.Limits, "mode": modes, "op_type": {"WRITE", "READ"}, "layout": append([]string{whole, "blocks"}, models...), "ids": layout.Orders,
		"memory": measure.Memories, "initiator_seg_type": measure.Memories, "target_seg_type": measure.Memories, "target": targets, "cuda": {"12", "13"},
		"output": append([]string{"table"}, page.Formats...),
	} {
		cli.Values(c, flag, words...)
	}
}

func (o *subjectFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.backend, "backend", "GORAIL", "backend, as NIXL names its plugin")
	f.StringVar(&o.compare, "compare", "", "backends to compare with the last one; +KEY=VALUE sets a variable or a parameter: GORAIL,UCX+UCX_TLS=tcp; GORAIL@here runs both processes here in spite of --connect, GORAIL@memfd sets --memory for itself")
	f.StringSliceVar(&o.limits, "limits", slices.Clone(measure.Limits), "limits to measure too; empty: none")
}

func (o *pointFlags) add(f *pflag.FlagSet) {
	o.startBlock, o.maxBlock = 4<<10, 64<<20
	f.StringSliceVar(&o.modes, "mode", []string{"transfer"}, "what to measure: "+strings.Join(modes, ", "))
	f.StringSliceVar(&o.ops, "op_type", []string{"WRITE"}, "WRITE, READ or both")
	f.StringVar(&o.shapes, "shapes", "", "exactly these transfers, such as 4K,1M,64x4K; otherwise sizes double between:")
	f.Var(&o.startBlock, "start_block_size", "smallest descriptor")
	f.Var(&o.maxBlock, "max_block_size", "largest descriptor")
	f.IntVar(&o.startBatch, "start_batch_size", 1, "fewest descriptors of a transfer")
	f.IntVar(&o.maxBatch, "max_batch_size", 1, "most descriptors of a transfer")
	f.Var(&o.total, "total_buffer_size", "most memory of a process; larger points are left out; 0: no limit")
	f.IntSliceVar(&o.depth, "depth", []int{1}, "transfers in flight of each thread")
	f.IntSliceVar(&o.threads, "num_threads", []int{1}, "threads of an initiator (--threads)")
	f.IntSliceVar(&o.agents, "agents", []int{1}, "agents of each process, with a thread each at least; the first of an initiator with the first of a target, and so on")
}

func (o *layoutFlags) add(f *pflag.FlagSet) {
	o.blockSize = 32 << 10
	var models []string
	for _, m := range layout.Models {
		models = append(models, fmt.Sprintf("%s (%s x %s)", m.Name, measure.Thousands(m.Blocks()), measure.SizeName(m.Block)))
	}
	f.StringVar(&o.layout, "layout", whole, "whole: the same descriptors each time. blocks: blocks of a pool, picked anew by their ids for each transfer over prepared lists, as inference engines do. Or a model: "+strings.Join(models, ", "))
	f.Var(&o.blockSize, "block_size", "bytes of a block")
	f.IntVar(&o.blocks, "blocks", 1000, "blocks of a transfer")
	f.StringVar(&o.ids, "ids", layout.Random, "which blocks: random, runs (of 16), in-order")
	f.IntVar(&o.pool, "pool", 2, "blocks of the pool of each transfer in flight, in transfers")
}

func (o *processFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.memory, "memory", "dram", "registered memory: dram (private pages), memfd (a shared memory file), vram (a GPU's), vmm (a GPU's, by cuMemCreate), fabric (that, for NVLink between hosts)")
	f.StringVar(&o.initiatorType, "initiator_seg_type", "", "memory of the initiators (default --memory)")
	f.StringVar(&o.targetType, "target_seg_type", "", "memory of the targets (default --memory)")
	f.BoolVar(&o.vmm, "enable_vmm", false, "vram means vmm")
	f.IntSliceVar(&o.gpus, "gpus", nil, "GPUs of the initiators, then of the targets: 0,1. The driver is libcuda.so.1, or GORAIL_CUDA_PATH (default GPU 0)")
}

func (o *loopFlags) add(f *pflag.FlagSet) {
	f.Uint64Var(&o.iterations, "num_iter", 0, "transfers at each point (default as many as fit into --time)")
	f.Uint64Var(&o.warmup, "warmup_iter", 10, "transfers of each thread before the clock starts")
	f.DurationVar(&o.time, "time", 500*time.Millisecond, "time for each point, backend and repeat")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "a point that takes longer has failed")
	f.IntVar(&o.repeats, "repeats", 3, "pairs of processes for each backend")
	f.BoolVar(&o.prog, "enable_pt", false, "progress thread")
	f.StringVar(&o.target, "target", "polls", "the target polls its notifications, naps 1 ms between polls, or sleeps (calls nothing)")
	f.BoolVar(&o.check, "check_consistency", true, "compare the bytes of every point")
}

func (o *placeFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "listen", "", "PORT, or host:port: serve targets for gorail bench --connect, to callers with the token that it prints. A port alone is for this host")
	f.Var(&o.connect, "connect", "host:port#token of gorail bench --listen; without #token the variable "+door.EnvToken+" has it")
	f.StringVar(&o.plugins, "plugins", "", "plugin folder for all backends (default GORAIL's own, and the wheel's)")
	f.StringVar(&o.cuda, "cuda", "", "of several NIXL wheels in one folder, take the one for this CUDA version: 12, 13")
	f.StringVar(&o.wheel, "wheel", "", "site-packages with a NIXL wheel (default NIXL_WHEEL_DIR, then what python3 imports)")
}

func (o *outputFlags) add(f *pflag.FlagSet) {
	o.Flags.Add(f, []string{"table"}, "table, json, md, html: for standard output, or with a file: table,json=run.json,html=run.html")
	f.BoolVar(&o.wide, "wide", false, "all columns in the table: 150 characters and more")
	f.StringVar(&o.title, "title", "Benchmark", "title of the run in a report")
}
