// Package side is one process of a benchmark: agents with one backend, or the work of a limit. It executes the driver's
// commands (see package subprocess). The processes live only in their subject's turn. Targets may be on another host,
// where Listen starts them.
package side

import (
	"time"

	"gorail/gorail/bench/layout"
	"gorail/gorail/measure"
	"gorail/internal/subprocess"
	"gorail/nixlapi"
)

// Protocol is the version of the commands, those of other services among them. It changes with them.
const Protocol = 6

// HelloArgs and HelloOut are exchanged before all else with a process on another host.
type HelloArgs struct{ Protocol int }

// HelloOut describes the process.
type HelloOut struct {
	Protocol int
	Machine  string
}

// OpenArgs describe the process. A process started for another host ignores folders and refuses an environment from
// there: it uses its own.
type OpenArgs struct {
	Name      string // of the agents, which have numbers after it
	Limit     string // one of measure.Limits instead of an agent
	Backend   string
	Params    subprocess.Map[string]
	Env       subprocess.Map[string]
	Wheel     string // site-packages; "": NIXL_WHEEL_DIR
	PluginDir string // "": NIXL_PLUGIN_DIR
	Prog      bool   // progress thread
	Sync      string // none, strict, rw
	Room      uint64 // bytes of the buffer
	Memory    string // one of measure.Memories; "": dram
	GPU       int    // of memory of GPUs
	Agents    int    // 0: one
	Threads   int    // most threads of a point
}

// OpenOut is the information for the other side.
type OpenOut struct {
	Peer
	Create   time.Duration // time to create the first backend
	Versions string
	GPU      string // the name of the memory's GPU
}

// Peer describes a target to an initiator.
type Peer struct {
	Names []string // of the agents
	MD    [][]byte // their metadata, with the buffer registered
	Base  uint64   // the address of the buffer
	Pid   int
	Kind  nixlapi.Mem
	Dev   uint64 // the device of the buffer's descriptors
}

// Seeds of the blocks' orders at both sides.
const (
	InitiatorOrder uint64 = iota
	TargetOrder
)

// PointArgs describe the requests of a point. For the limit tcp the target replies with the port to connect to.
type PointArgs struct {
	Point  measure.Point
	Notify bool
	Addr   string // tcp, initiator: the target's listen address
}

// PointOut has the time to create one request, or with blocks both lists.
type PointOut struct {
	Make time.Duration
	Port int // tcp, target
}

// MemArgs describe the memory of transfers on one side, to fill or check: the descriptors with Seed, the gaps with Between.
type MemArgs struct {
	Place         layout.Place
	Slots         int
	IDs           string // one of layout.Orders, or ""
	Order         uint64 // seed of the blocks' order
	N             int    // descriptors of a slot to check; 0: all
	Seed, Between uint64
	CopyTarget    bool // memcpy: the second buffer
}

// RunOut is the initiator's result of a point.
type RunOut struct {
	Done, Posted     uint64        // timed; all, including warmup
	Began, Ended     time.Duration // the first thread's clock started, the last one's stopped: times of CLOCK_MONOTONIC
	CPU              time.Duration
	Lat, Post, Makes measure.Times
	Failed           string
}

// ServeArgs start the target's polling. Without a Limit the target does not poll.
type ServeArgs struct{ Limit, Nap time.Duration }

// WantArgs end the polling after N notifications or after Wait.
type WantArgs struct {
	N     uint64
	Wait  time.Duration
	Sleep bool // the target has not polled until now
}

// WantOut is the target's result.
type WantOut struct {
	Seen uint64
	CPU  time.Duration
}

// NotifyArgs describe notifications without transfers, of the first agents.
type NotifyArgs struct {
	Size uint64
	Pace measure.Pace
}

// None is an empty argument or reply.
type None struct{}
