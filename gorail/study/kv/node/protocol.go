// Package node is one process of a serving cluster in the study of KV caches: an agent with a pool of blocks. A prefill node announces or
// writes the blocks of requests when their layers are computed. A decode node reads them, or waits for them, and notes when all are there.
package node

import (
	"encoding/binary"
	"time"

	"gorail/internal/subprocess"
)

// Command is the argument that makes this program a node.
const Command = "study-node"

// Service is the name of a node's commands.
const Service = "Node"

// Shape is a request's blocks.
type Shape struct {
	Layers int
	Blocks int    // of a layer
	Block  uint64 // bytes
	Slots  int    // requests that a prefill node and a decode node have memory for, of each other
}

// Bytes is the size of a request.
func (s Shape) Bytes() uint64 { return uint64(s.Layers*s.Blocks) * s.Block }

// blocks is the number of blocks of a slot.
func (s Shape) blocks() int { return s.Layers * s.Blocks }

// OpenArgs describe a node.
type OpenArgs struct {
	Name             string
	Backend          string
	Params           subprocess.Map[string]
	Env              subprocess.Map[string]
	Wheel, PluginDir string
	Shape            Shape
	Decode           bool
	Number           int  // among the nodes of its kind
	Prefills         int  // their number: a decode node has slots for each
	Life             int  // of the node's engine: a node that is started anew has another
	Clock            bool // Step will be called
}

// Peer is what other nodes need of a node.
type Peer struct {
	Name   string
	Number int
	MD     []byte
	Base   uint64
	Pid    int
	Life   int

	Versions string
}

// Task is one layer of a request, or all layers, at its prefill node.
type Task struct {
	At       time.Duration // of CLOCK_MONOTONIC: the layers are computed
	Ready    time.Duration // the request's last layer is computed
	Request  int
	Decode   int // the decode node's number
	Slot     int
	First, N int  // layers
	Read     bool // the decode node reads; otherwise we write
}

// Event is the end of a task.
type Event struct {
	Request, Layers int
	At              time.Duration
	Failed          string // "": the blocks are in place, and the decode node knows
}

// StartArgs begin a phase.
type StartArgs struct {
	Tasks  []Task
	Expect int           // layers that come to a decode node
	Limit  time.Duration // of CLOCK_MONOTONIC: what has not ended by then has failed
}

// StopOut are a node's events.
type StopOut struct{ Events []Event }

// CheckArgs name slots of a decode node whose bytes are compared.
type CheckArgs struct{ Slots []SlotOf }

// SlotOf is a slot of a prefill node.
type SlotOf struct{ Prefill, Slot int }

// PromptArgs let a prefill node compute a prompt: it fills a slot, which is held until the decode node's notification says that all is read.
type PromptArgs struct {
	Request uint64 // the seed of its bytes
	Slot    int
	Before  uint64 // the slot's request before, which was read: its notification has come, or comes within Within; 0: none was
	Within  time.Duration
}

// PullArgs let a decode node read a request, as vLLM's NixlConnector does.
type PullArgs struct {
	Request       uint64
	Prefill, Life int
	Slot          int
	Within        time.Duration // what has not ended by then has failed
}

// PullOut is how it ended.
type PullOut struct {
	Unknown bool          // the decode node wants Meet first
	Failed  string        // "": all blocks are here
	Wrong   string        // which bytes are not those of the request; "": none
	Took    time.Duration // from the request to the last block, by the node's own clock
}

// None is an empty argument or reply.
type None struct{}

// note is the message of a notification: the request, its prefill node and slot, and which layers.
type note struct {
	Request, Prefill, Slot, First, N uint32
	Read                             uint32 // 1: the decode node is to read them
}

func (n note) bytes() []byte {
	b := make([]byte, 0, 24)
	for _, v := range []uint32{n.Request, n.Prefill, n.Slot, n.First, n.N, n.Read} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// parse returns false for a message of another form.
func (n *note) parse(b []byte) bool {
	if len(b) != 24 {
		return false
	}
	for i, p := range []*uint32{&n.Request, &n.Prefill, &n.Slot, &n.First, &n.N, &n.Read} {
		*p = binary.LittleEndian.Uint32(b[4*i:])
	}
	return true
}
