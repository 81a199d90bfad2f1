package kv

import (
	"fmt"
	"slices"
	"strings"

	"gorail/gorail/study/kv/node"
)

// Model is the KV cache of a named model on one worker.
type Model struct {
	Name, What string
	Layers     int
	Block      uint64 // bytes of a page of one layer: K or V alone, or both where the model has one
	Page       int    // tokens of a page
	Parts      int    // blocks of a page and layer: 2 for K and V, 1 for latent attention
}

// Models are the models that the study knows. Elements have two bytes.
var Models = []Model{
	{"llama-8b", "Llama 3 8B: 32 layers, 8 KV heads of 128", 32, 32 << 10, 16, 2},
	{"llama-70b-tp8", "Llama 3 70B, one of 8 tensor-parallel ranks: 80 layers, one KV head of 128", 80, 4 << 10, 16, 2},
	{"deepseek-mla", "DeepSeek V3: 61 layers of latent attention, 576 a token", 61, 73_728, 64, 1},
	{"qwen-32b", "Qwen3 32B: 64 layers, 8 KV heads of 128", 64, 32 << 10, 16, 2},
}

// find returns the models of names.
func find(names []string) (out []Model, err error) {
	for _, n := range names {
		i := slices.IndexFunc(Models, func(m Model) bool { return m.Name == n })
		if i < 0 {
			var all []string
			for _, m := range Models {
				all = append(all, m.Name)
			}
			return nil, fmt.Errorf("no model %q: want %s", n, strings.Join(all, ", "))
		}
		out = append(out, Models[i])
	}
	return out, nil
}

// shape is a request of tokens.
func (m Model) shape(tokens, slots int) node.Shape {
	pages := max(1, (tokens+m.Page-1)/m.Page)
	return node.Shape{Layers: m.Layers, Blocks: pages * m.Parts, Block: m.Block, Slots: slots}
}
