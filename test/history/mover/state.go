package mover

import (
	"fmt"
	"hash/fnv"
	"time"

	"gorail/internal/pattern"
	"gorail/nixlapi"
	"gorail/test/history"
	"gorail/test/history/record"
	"gorail/test/worker"
)

// Begin describes a mover.
type Begin struct {
	Seed    uint64
	Engine  history.Engine
	Names   []string // of all agents; the number of an agent is its place
	Backend string
	Params  map[string]string
	Wheel   string
	Board   string // see BoardPath
	Log     string // file of the history
	GPUs    int
	Size    uint64        // of a piece
	Soon    time.Duration // memory must be given back within this time
	// Of a thousand steps, how many change memory, and how many remove a peer and load it again.
	Changes, Reloads int
	// Spared: nobody posts transfers of GPU memory that is away. A GPU that copies from there on a peer's behalf fails for good.
	Spared bool
}

// Load is what a peer loads.
type Load struct {
	Engine history.Engine
	Blob   []byte
	Board  string
	Size   uint64
	Pid    int
	Pieces []Piece
}

// Piece is a piece of a peer's memory.
type Piece struct {
	Desc nixlapi.Desc
	Mem  nixlapi.Mem
}

// mover is the agent and its state. All of it belongs to one thread.
type mover struct {
	Begin
	agent   *nixlapi.Agent
	backend *nixlapi.Backend
	gpu     worker.GPU
	record.Calls
	queue   chan func() // commands, run between polls
	board   *Board
	pieces  []*piece
	peers   map[string]*peer
	local   [2]*locals // of the host, of a GPU
	debts   []*debt
	steps   uint64
	next    time.Time // of the next step
	running bool      // steps are taken
}

// piece is memory of ours that peers read and write.
type piece struct {
	place
	kind
	number     int
	generation uint64
	away       bool // a change is under way
	unmapped   bool
	registered bool
	lost       bool // its addresses are: it is not used again
	tries      int  // to get its addresses back
	until      time.Time
	wanted     *change // waits until transfers in flight have ended
}

// change says how memory changes.
type change struct {
	deregister, unmap bool
	hold              time.Duration // how long it is away
}

// peer is a target of ours.
type peer struct {
	Load
	number int
	board  *Board
	known  bool // loaded; the agent may have removed it since
	rest   time.Time
	lanes  []*lane
}

// locals is the local memory of all lanes, of the host or of a GPU.
type locals struct{ place }

// lane is the transfers of one direction with one piece of a peer: one at a time.
type lane struct {
	piece int
	what  history.What
	place int // of its local memory
	req   *nixlapi.Xfer
	op    *op
	idle  time.Time // a transfer that has ended without success counts as in flight until then: the owner may work on it
	shape
}

// shape is of a request.
type shape struct {
	gpu    int    // 1: the local memory is of a GPU
	off, n uint64 // at the peer
	descs  int
}

// op is a transfer in flight.
type op struct {
	number     uint64
	generation uint64    // of the peer's piece, before the post
	release    time.Time // zero: never
}

// debt is memory that was taken away, and that peers have to give back.
type debt struct {
	files []uint64
	what  string
	since int64
	look  time.Time // when to look next
	until time.Time
}

// number is the place of an agent in the list.
func (a *mover) number(name string) int {
	for i, n := range a.Names {
		if n == name {
			return i
		}
	}
	return -1
}

// device is a GPU for an agent's memory.
func (a *mover) device(n int) int { return (a.number(a.Engine.Agent) + n) % a.GPUs }

// seed of the pattern of something.
func seed(parts ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, parts...)
	return h.Sum64()
}

func writeSeed(by history.Engine, op uint64) uint64 { return seed("write", by, op) }

func readSeed(owner history.Engine, piece int, generation uint64) uint64 {
	return seed("read", owner, " ", piece, " ", generation)
}

// bytesOf is a part of a pattern.
func bytesOf(seed, pos, n uint64) []byte {
	b := make([]byte, n)
	pattern.Fill(b, seed, pos)
	return b
}

// wait leaves a peer alone for a moment after an error.
func (a *mover) wait(p *peer) { p.rest = time.Now().Add(20 * time.Millisecond) }
