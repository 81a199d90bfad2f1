package rank

import "strings"

// Model is one rank's weights of a model that is trained with some tensor parallelism.
type Model struct {
	Name, What                              string
	Hidden, Inner, KV, Vocab, Ranks, Layers uint64
}

// Models are the shapes to choose from.
var Models = []Model{
	{"llama-8b", "Llama 3 8B", 4096, 14336, 1024, 128256, 1, 32},
	{"llama-70b-tp8", "one of 8 ranks of Llama 3 70B", 8192, 28672, 1024, 128256, 8, 80},
	{"llama-70b", "Llama 3 70B", 8192, 28672, 1024, 128256, 1, 80},
}

// tensor is a matrix of bfloat16. Tensor parallelism splits it by rows ('r'), by columns ('c'), or not at all.
type tensor struct {
	rows, cols uint64
	by         byte
}

func (t tensor) bytes() uint64 { return 2 * t.rows * t.cols }

// tensors are the rank's tensors. Of scale rows of a matrix there is one.
func (m Model) tensors(scale uint64) (out []tensor) {
	rows := func(cols uint64, rows ...uint64) {
		for _, n := range rows {
			out = append(out, tensor{max(2, n/m.Ranks/scale&^1), cols, 'r'})
		}
	}
	columns := func(n uint64) { out = append(out, tensor{max(2, m.Hidden/scale&^1), n / m.Ranks, 'c'}) }
	norm := tensor{1, m.Hidden, 0}
	rows(m.Hidden, m.Vocab, m.Vocab) // the embedding and the head
	for range m.Layers {
		rows(m.Hidden, m.Hidden, m.KV, m.KV, m.Inner, m.Inner)
		columns(m.Hidden)
		columns(m.Inner)
		out = append(out, norm, norm)
	}
	return append(out, norm)
}

// Bytes is the size of all tensors.
func (m Model) Bytes(scale uint64) (n uint64) {
	for _, t := range m.tensors(scale) {
		n += t.bytes()
	}
	return n
}

// span is a range of the trainer's tensor, and where a worker's tensor has it.
type span struct{ trainer, worker, size uint64 }

// spans are what a worker has of the trainer's tensor: half 0 or 1, as a rank of twice the tensor parallelism, or Whole.
func (t tensor) spans(half int) (out []span) {
	n := t.bytes()
	switch {
	case half == Whole || t.by == 0:
		return []span{{0, 0, n}}
	case t.by == 'r':
		return []span{{uint64(half) * n / 2, 0, n / 2}}
	}
	for row := range t.rows {
		out = append(out, span{(2*row + uint64(half)) * t.cols, row * t.cols, t.cols}) // half a row of two bytes an element
	}
	return out
}

// ModelNames lists the names of Models.
func ModelNames() string {
	var names []string
	for _, m := range Models {
		names = append(names, m.Name)
	}
	return strings.Join(names, ", ")
}
