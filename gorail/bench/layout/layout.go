// Package layout says where the descriptors of a transfer lie in memory: side by side, or as the blocks of a KV cache that an inference
// engine picks by their ids. It is pure.
package layout

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Place is where the descriptors of all transfers lie in the buffer of a process. A slot is the memory of one transfer in flight.
type Place struct {
	Slot   uint64 // bytes between two slots
	Stride uint64 // bytes between the starts of two descriptors
	Len    uint64 // bytes of a descriptor
	Gap    uint64 // bytes behind a descriptor that no transfer touches
	N      int    // descriptors of a slot
}

// At returns the offset in the buffer of a slot's descriptor.
func (p Place) At(slot, i int) uint64 { return uint64(slot)*p.Slot + uint64(i)*p.Stride }

// Position returns the place of a descriptor's bytes in the order of all bytes that a number of slots move. It is the same on both
// sides for the same slot and the same k-th descriptor of its transfers.
func (p Place) Position(slot, k int) uint64 { return (uint64(slot)*uint64(p.N) + uint64(k)) * p.Len }

// End returns the offset behind the last byte of a number of slots.
func (p Place) End(slots int) uint64 { return uint64(slots) * p.Slot }

// How an engine picks its blocks.
const (
	Random  = "random"   // each block anywhere in the pool
	Runs    = "runs"     // runs of RunLength blocks anywhere in the pool
	InOrder = "in-order" // the blocks of the pool from the first on
)

// Orders lists them.
var Orders = []string{Random, Runs, InOrder}

// RunLength is the length of a run.
const RunLength = 16

// IDs returns the ids of all n blocks of a pool in the order in which transfers pick them. Each id comes once. The two sides of a
// transfer have different seeds: the ids of an initiator say nothing about those of its target.
func IDs(order string, n int, seed uint64) []int32 {
	ids := make([]int32, 0, n)
	run := RunLength
	switch order {
	case Random:
		run = 1
	case Runs:
	default:
		run = max(n, 1)
	}
	starts := make([]int, 0, n/run+1)
	for i := 0; i < n; i += run {
		starts = append(starts, i)
	}
	// Both sides are to agree on a run's length: the last one, which may be shorter, stays the last.
	full := n / run
	r := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	r.Shuffle(full, func(i, j int) { starts[i], starts[j] = starts[j], starts[i] })
	for _, at := range starts {
		for i := at; i < min(at+run, n); i++ {
			ids = append(ids, int32(i))
		}
	}
	return ids
}

// Model is the KV cache of one request of a model, as an engine transfers it.
type Model struct {
	Name, What string
	Blocks     int    // of a request
	Block      uint64 // bytes
}

// Models are the layouts with names.
var Models = []Model{
	{"llama-8b", "Llama 3 8B, 32 layers, 250 pages of 16 tokens, one KV head group a block", 8_000, 32 << 10},
	{"llama-70b-tp8", "Llama 3 70B, 80 layers, tensor parallel over 8 GPUs, 1,000 pages", 80_000, 4 << 10},
	{"deepseek-mla", "DeepSeek V3, 61 layers of latent attention, 32 pages of 64 tokens", 1_952, 73_728},
}

// Find returns the model of a name.
func Find(name string) (Model, error) {
	var names []string
	for _, m := range Models {
		if m.Name == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return Model{}, fmt.Errorf("no layout %q: want whole, blocks or a model: %s", name, strings.Join(names, ", "))
}
