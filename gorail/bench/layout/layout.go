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

// Model is the KV cache of a named model on one worker. Elements have two bytes.
type Model struct {
	Name, What string
	Layers     int
	Block      uint64 // bytes of a page of one layer: K or V alone, or both where the model has one
	Page       int    // tokens of a page
	Parts      int    // blocks of a page and layer: 2 for K and V, 1 for latent attention
	Tokens     int    // of a prompt, unless the user says
}

// Models are the models with names.
var Models = []Model{
	{"llama-8b", "Llama 3 8B: 32 layers, 8 KV heads of 128", 32, 32 << 10, 16, 2, 2_000},
	{"llama-70b-tp8", "Llama 3 70B, one of 8 tensor-parallel ranks: 80 layers, one KV head of 128", 80, 4 << 10, 16, 2, 8_000},
	{"deepseek-mla", "DeepSeek V3: 61 layers of latent attention, 576 a token", 61, 73_728, 64, 1, 2_048},
	{"qwen-32b", "Qwen3 32B: 64 layers, 8 KV heads of 128", 64, 32 << 10, 16, 2, 2_000},
}

// LayerBlocks returns the blocks of a layer for a prompt.
func (m Model) LayerBlocks(tokens int) int { return max(1, (tokens+m.Page-1)/m.Page) * m.Parts }

// Blocks returns the blocks of a request.
func (m Model) Blocks() int { return m.Layers * m.LayerBlocks(m.Tokens) }

// ModelNames lists the names.
func ModelNames() string {
	var names []string
	for _, m := range Models {
		names = append(names, m.Name)
	}
	return strings.Join(names, ", ")
}

// Find returns the model of a name.
func Find(name string) (Model, error) {
	for _, m := range Models {
		if m.Name == name {
			return m, nil
		}
	}
	return Model{}, fmt.Errorf("no model %q: want %s", name, ModelNames())
}
