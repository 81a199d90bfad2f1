package measure

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gorail/gorail/bench/layout"
)

// Point is one kind of transfer to measure repeatedly.
type Point struct {
	Op      string // READ, WRITE; NOTIFY: only notifications; IDLE: nothing
	Block   uint64 // bytes of a descriptor; of a notification
	Batch   int    // descriptors of a transfer
	Depth   int    // transfers in flight of a thread
	Threads int    // of an initiator
	Dense   bool   // adjacent descriptors; otherwise 4 KiB lie between them

	Agents int    `json:",omitempty"` // of either process, which the threads share evenly; 0: one
	IDs    string `json:",omitempty"` // one of layout.Orders: transfers pick blocks of a pool; "": the same descriptors each time
	Pool   int    `json:",omitempty"` // with IDs: size of each transfer's pool in transfers; 0: one
}

// gap lies between scattered descriptors, so that they cannot be merged and share no page.
const gap = 4096

// Engines returns the number of agents of a process.
func (p Point) Engines() int { return max(1, p.Agents) }

// Sets returns the number of transfers in a pool.
func (p Point) Sets() int { return max(1, p.Pool) }

// Slots returns the number of transfers in flight.
func (p Point) Slots() int { return p.Threads * p.Depth }

// Place returns where the descriptors lie in a buffer.
func (p Point) Place() layout.Place {
	w := layout.Place{Len: p.Block, N: p.Batch * p.Sets(), Stride: p.Block}
	if !p.Dense {
		w.Stride, w.Gap = w.Stride+gap, gap
	}
	w.Slot = (uint64(w.N)*w.Stride + gap - 1) / gap * gap
	return w
}

// Room is the buffer space of all transfers in flight.
func (p Point) Room() uint64 { return p.Place().End(p.Slots()) }

// Bytes is the size of a transfer.
func (p Point) Bytes() uint64 { return p.Block * uint64(p.Batch) }

// Transfers reports whether the point moves memory.
func (p Point) Transfers() bool { return p.Op == "READ" || p.Op == "WRITE" }

// Shape describes the descriptors of a transfer: 4 KiB, 64 x 4 KiB, 64 x 4 KiB random.
func (p Point) Shape() string {
	text := SizeName(p.Block)
	if p.Batch > 1 {
		text = fmt.Sprintf("%s x %s", Thousands(p.Batch), text)
	}
	if p.IDs != "" {
		text += " " + p.IDs
	}
	return text
}

// Sweep generates points from flags: blocks and batches grow from start to max.
type Sweep struct {
	Ops                  []string
	StartBlock, MaxBlock uint64
	StartBatch, MaxBatch int
	Depths, Threads      []int
	BlockStep            uint64 // factor between blocks; 0: 2
	BatchStep            int
	Total                uint64 // points that need more memory are left out; 0: no limit
}

// Points returns the points of a sweep, in the order of measurement.
func (s Sweep) Points() (out []Point) {
	blockStep, batchStep := max(s.BlockStep, 2), max(s.BatchStep, 2)
	for _, op := range s.Ops {
		for _, threads := range s.Threads {
			for _, depth := range s.Depths {
				for batch := s.StartBatch; batch <= s.MaxBatch; batch *= batchStep {
					for block := s.StartBlock; block <= s.MaxBlock; block *= blockStep {
						p := Point{Op: op, Block: block, Batch: batch, Depth: depth, Threads: threads}
						if s.Total == 0 || p.Room() <= s.Total {
							out = append(out, p)
						}
					}
				}
			}
		}
	}
	return out
}

// ParseShapes parses "4K,64x4K,10000x8K" to points of ops, with one thread and one transfer in flight.
func ParseShapes(text string, ops []string) (out []Point, err error) {
	for _, op := range ops {
		for word := range strings.SplitSeq(text, ",") {
			count, size, both := strings.Cut(word, "x")
			batch := 1
			if both {
				if batch, err = strconv.Atoi(count); err != nil || batch < 1 {
					return nil, fmt.Errorf("%q: not a number of descriptors and a size, such as 64x4K", word)
				}
			} else {
				size = count
			}
			block, err := ParseSize(size)
			if err != nil || block == 0 {
				return nil, fmt.Errorf("%q: not a size such as 4096, 4K or 4KiB", word)
			}
			out = append(out, Point{Op: op, Block: block, Batch: batch, Depth: 1, Threads: 1})
		}
	}
	return out, nil
}

// Load returns the points with each number of threads and of transfers in flight.
func Load(points []Point, depths, threads []int) (out []Point) {
	for _, t := range threads {
		for _, d := range depths {
			for _, p := range points {
				p.Threads, p.Depth = t, d
				out = append(out, p)
			}
		}
	}
	return out
}

// Share returns the points with each number of agents. A process has at least as many threads as agents.
func Share(points []Point, agents []int) (out []Point) {
	for _, n := range agents {
		for _, p := range points {
			if n > 1 && p.Op != "NOTIFY" && p.Op != "IDLE" {
				p.Agents, p.Threads = n, max(p.Threads, n)
			}
			if !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

// Pace sets how often and how long each point is measured.
type Pace struct {
	Warmup uint64        // transfers of each thread before the clock starts
	Count  uint64        // transfers in all; 0: as many as Time allows
	Time   time.Duration // for a point
	Limit  time.Duration // a point that takes longer has failed
}
