// Package side is one process of a benchmark: an agent with one backend, or the work of a limit. It executes the
// driver's commands (see package subprocess). A pair of processes lives only in its subject's turn. The target may be
// on another host, where Listen starts it.
package side

import (
	"time"

	"gorail/cmd/gorail/measure"
)

// OpenArgs describe the process. A process started for another host ignores folders and refuses an environment from
// there: it uses its own.
type OpenArgs struct {
	Name      string // of the agent
	Limit     string // one of measure.Limits instead of an agent
	Backend   string
	Params    map[string]string
	Env       map[string]string
	Wheel     string // site-packages; "": NIXL_WHEEL_DIR
	PluginDir string // "": NIXL_PLUGIN_DIR
	Prog      bool   // progress thread
	Sync      string // none, strict, rw
	Room      uint64 // bytes of the buffer
	Memory    string // one of measure.Memories; "": dram
	Threads   int    // most threads of a point
}

// OpenOut is the information for the other side.
type OpenOut struct {
	MD            []byte // the agent's metadata, with the buffer registered
	Base          uint64 // the address of the buffer
	Pid           int
	Create, Later time.Duration // time to create the backend, and another one
	FDs           int           // above the number before
	Versions      string
}

// PeerArgs describe the target to the initiator.
type PeerArgs struct {
	MD   []byte
	Base uint64
	Pid  int
}

// PointArgs describe the requests of a point. For the limit tcp the target replies with the port to connect to.
type PointArgs struct {
	Point  measure.Point
	Notify bool
	Addr   string // tcp, initiator: the target's listen address
}

// PointOut has the time to create one request.
type PointOut struct {
	Make time.Duration
	Port int // tcp, target
}

// MemArgs describe the memory of a point, to fill or check: the blocks with Seed, the gaps with Between.
type MemArgs struct {
	Point         measure.Point
	Seed, Between uint64
	CopyTarget    bool // memcpy: the second buffer
}

// RunOut is the initiator's result of a point.
type RunOut struct {
	Done, Posted uint64 // timed; all, including warmup
	Wall, CPU    time.Duration
	Lat, Post    measure.Times
	Failed       string
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

// NotifyArgs describe notifications without transfers.
type NotifyArgs struct {
	Size uint64
	Pace measure.Pace
}

// Stats is the growth of the process since before the engine was created.
type Stats struct {
	Threads int
	MiB     float64
	CPU     time.Duration
}

// None is an empty argument or reply.
type None struct{}
