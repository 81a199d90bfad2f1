package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gorail/gorail/bench/layout"
	"gorail/gorail/measure"
)

// modes are the values of --mode, and targets those of --target.
var (
	modes   = []string{"transfer", "small", "descriptors", "notify", "idle"}
	targets = []string{"polls", "naps", "sleeps"}
)

// points returns the points that the flags select.
func (o *benchFlags) points() (out []measure.Point, err error) {
	for i, op := range o.ops {
		if o.ops[i] = strings.ToUpper(op); o.ops[i] != "WRITE" && o.ops[i] != "READ" {
			return nil, fmt.Errorf("--op_type %q: want WRITE or READ", op)
		}
	}
	for _, n := range slices.Concat([]int{o.startBatch, o.maxBatch, o.repeats, o.blocks, o.pool}, o.depth, o.threads, o.agents) {
		if n < 1 {
			return nil, errors.New("batches, --depth, --num_threads, --agents, --repeats, --blocks and --pool must be 1 or more")
		}
	}
	if o.startBlock == 0 {
		return nil, errors.New("--start_block_size must be 1 or more")
	}
	all := measure.Sweep{Ops: o.ops, StartBatch: 1, MaxBatch: 1, Depths: []int{1}, Threads: []int{1}, Total: uint64(o.total)}
	for _, mode := range o.modes {
		s := all
		switch mode {
		case "transfer", "SG": // nixlbench's name for one GPU a process
			if o.layout != whole {
				points, err := o.blockPoints()
				if err != nil {
					return nil, err
				}
				out = append(out, points...)
				continue
			}
			s.StartBlock, s.MaxBlock, s.StartBatch, s.MaxBatch = uint64(o.startBlock), uint64(o.maxBlock), o.startBatch, o.maxBatch
			s.Depths, s.Threads = o.depth, o.threads
			if o.shapes != "" {
				shapes, err := measure.ParseShapes(o.shapes, o.ops)
				if err != nil {
					return nil, fmt.Errorf("--shapes: %w", err)
				}
				out = append(out, measure.Load(shapes, s.Depths, s.Threads)...)
				continue
			}
		case "small":
			s.StartBlock, s.MaxBlock, s.BlockStep = 64, 16<<10, 4
			s.Depths, s.Threads = []int{1, 4, 16, 64}, []int{1, 2, 4, 8}
			if o.given("depth") {
				s.Depths = o.depth
			}
			if o.given("num_threads") || o.given("agents") {
				s.Threads = o.threads
			}
		case "descriptors":
			s.StartBlock, s.MaxBlock, s.MaxBatch, s.BatchStep = 1<<10, 1<<10, 1<<16, 4
		case "notify":
			out = append(out, measure.Point{Op: "NOTIFY", Block: 16, Batch: 1, Depth: 1, Threads: 1})
			continue
		case "idle":
			out = append(out, measure.Point{Op: "IDLE", Batch: 1, Depth: 1, Threads: 1})
			continue
		case "MG":
			return nil, errors.New("--mode MG: a process has one GPU here; --gpus names them")
		default:
			return nil, fmt.Errorf("--mode %q: want %s", mode, strings.Join(modes, ", "))
		}
		out = append(out, s.Points()...)
	}
	if len(out) == 0 {
		return nil, errors.New("the flags leave nothing to measure: check sizes, batches and --total_buffer_size")
	}
	out = measure.Share(out, o.agents)
	return out, nil
}

// given reports whether the user gave a flag.
func (o *benchFlags) given(name string) bool { return o.changed != nil && o.changed(name) }

// whole is the layout without blocks.
const whole = "whole"

// blockPoints returns the points of a layout of blocks. The blocks of a pool are adjacent, as in a KV cache.
func (o *benchFlags) blockPoints() (out []measure.Point, err error) {
	if o.shapes != "" {
		return nil, fmt.Errorf("--shapes is for --layout %s; --block_size and --blocks are the shape of --layout %s", whole, o.layout)
	}
	if !slices.Contains(layout.Orders, o.ids) {
		return nil, fmt.Errorf("--ids %q: want %s", o.ids, strings.Join(layout.Orders, ", "))
	}
	block, blocks := uint64(o.blockSize), o.blocks
	if o.layout != "blocks" {
		m, err := layout.Find(o.layout)
		if err != nil {
			return nil, fmt.Errorf("--layout: want whole, blocks or a model: %w", err)
		}
		if !o.given("block_size") {
			block = m.Block
		}
		if !o.given("blocks") {
			blocks = m.Blocks()
		}
	}
	if block == 0 {
		return nil, errors.New("--block_size must be 1 or more")
	}
	for _, op := range o.ops {
		p := measure.Point{Op: op, Block: block, Batch: blocks, Dense: true, IDs: o.ids, Pool: o.pool}
		for _, p := range measure.Load([]measure.Point{p}, o.depth, o.threads) {
			if o.total == 0 || p.Room() <= uint64(o.total) {
				out = append(out, p)
			}
		}
	}
	return out, nil
}
