// Package side is one process of a benchmark: an agent with one backend, or what a limit needs. It obeys the driver (see
// package subprocess). A pair of them is alive only in its subject's turn. The target may be on another host, where
// Listen starts it.
package side

import (
	"time"

	"gorail/cmd/gorail/measure"
)

// OpenArgs say what the process is to be. A process that was started for another host takes neither folders nor an environment from
// there: it has its own.
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
	Threads   int    // most threads of a point
}

// OpenOut is what the other side has to know.
type OpenOut struct {
	MD            []byte // the agent's metadata, the buffer registered
	Base          uint64 // where the buffer is
	Pid           int
	Create, Later time.Duration // making the backend, making another
	FDs           int           // more than before
	Versions      string
}

// PeerArgs tell the initiator of its target.
type PeerArgs struct {
	MD   []byte
	Base uint64
	Pid  int
}

// PointArgs make the requests of a point. For the limit tcp the target answers with the port to connect to.
type PointArgs struct {
	Point  measure.Point
	Notify bool
	Addr   string // tcp, initiator: where the target listens
}

// PointOut says how long a request took to make.
type PointOut struct {
	Make time.Duration
	Port int // tcp, target
}

// MemArgs fill or check the memory of a point: the blocks with Seed, what is between them with Between.
type MemArgs struct {
	Point         measure.Point
	Seed, Between uint64
	Twin          bool // memcpy: the second buffer
}

// RunOut is what the initiator saw of a point.
type RunOut struct {
	Done, Posted uint64 // timed; all, with those that warmed up
	Wall, CPU    time.Duration
	Lat, Post    measure.Times
	Failed       string
}

// ServeArgs begin the target's polling; without a Limit it does not poll.
type ServeArgs struct{ Limit, Nap time.Duration }

// WantArgs end it when N notifications have come, or after Wait.
type WantArgs struct {
	N     uint64
	Wait  time.Duration
	Sleep bool // it has not polled until now
}

// WantOut is what the target saw.
type WantOut struct {
	Seen uint64
	CPU  time.Duration
}

// NotifyArgs send notifications alone.
type NotifyArgs struct {
	Size uint64
	Pace measure.Pace
}

// Stats are what the process grew to since before the engine was made.
type Stats struct {
	Threads int
	MiB     float64
	CPU     time.Duration
}

// None stands where there is nothing to say.
type None struct{}
