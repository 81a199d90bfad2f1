package stats

import (
	"encoding/json"
	"math"
	"runtime"
	"time"
)

// Live is what a running engine shows: its counters and the transfers in flight.
type Live struct {
	Process
	Snapshot
	Core    map[string]uint64 `json:"core"`
	Control any               `json:"control,omitempty"` // peer.Stats

	Runtime   Runtime    `json:"runtime"`
	Transfers []Transfer `json:"transfers"` // in flight, the oldest first
	LeftOut   int        `json:"transfers_left_out"`
	Log       []Line     `json:"log"` // the last warnings and errors, also those that option log leaves out
}

// Process says which process has the engine.
type Process struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"` // in the process's own PID namespace
	Host    string    `json:"host"`
	Command string    `json:"command"`
	Started time.Time `json:"started"` // the engine
	Now     time.Time `json:"now"`
}

// Runtime is what the Go runtime of the plugin counts. All engines of a process share it. Both numbers only grow.
type Runtime struct {
	Objects  uint64  `json:"heap_objects"`      // allocated; single ones come late, some hundred at a time
	LockWait float64 `json:"lock_wait_seconds"` // of all goroutines, for locks of Go
}

// Memory is what the plugin's Go runtime holds after its collector has run. All engines of a process share it.
type Memory struct {
	Bytes      uint64 `json:"heap_bytes"`
	Objects    uint64 `json:"heap_objects"`
	Goroutines int    `json:"goroutines"`
}

// memory runs the collector twice: the first run finds what has a cleanup, and the second frees what only that kept.
func memory() Memory {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return Memory{Bytes: m.HeapAlloc, Objects: m.HeapObjects, Goroutines: runtime.NumGoroutine()}
}

// Transfer is a transfer in flight.
type Transfer struct {
	Handle uint64   `json:"handle"`
	Peer   string   `json:"peer"`
	Op     string   `json:"op"` // WRITE, READ
	State  State    `json:"state"`
	Bytes  uint64   `json:"bytes"`
	Left   uint64   `json:"bytes_left"`
	Age    float64  `json:"age_seconds"`  // since the post
	Idle   Since    `json:"idle_seconds"` // since the last completion or the post
	Rails  []string `json:"rails"`        // links that have moved bytes of it, or that may
	Reason string   `json:"reason,omitempty"`
}

// State is the state of a transfer in flight.
type State string

// States of transfers.
const (
	IsQueued  State = "queued"  // waits for the peer or for its keys
	IsPosted  State = "posted"  // the core has it
	IsStaged  State = "staged"  // moves over bounce buffers
	IsAborted State = "aborted" // failed; its operations drain
	IsFreed   State = "freed"   // the application has released it; its operations drain
)

// Line is a line of the log.
type Line struct {
	Time  time.Time `json:"time"`
	Level string    `json:"level"`
	Text  string    `json:"text"`
}

// Since is a time without completions. In JSON it is seconds, or null if there never was a completion.
type Since time.Duration

// Never is the Since of what has had no completion.
const Never Since = -1

// MarshalJSON implements json.Marshaler.
func (i Since) MarshalJSON() ([]byte, error) {
	if i < 0 {
		return []byte("null"), nil
	}
	return json.Marshal(math.Round(time.Duration(i).Seconds()*1e6) / 1e6)
}

// UnmarshalJSON implements json.Unmarshaler.
func (i *Since) UnmarshalJSON(b []byte) error {
	var s *float64
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if *i = Never; s != nil {
		*i = Since(*s * float64(time.Second))
	}
	return nil
}

// Trace is what an engine noted for some seconds.
type Trace struct {
	Agent string `json:"agent"`
	Process
	Seconds   float64          `json:"seconds"`        // from Now on
	Transfers []TracedTransfer `json:"transfers"`      // that ended meanwhile
	Lost      uint64           `json:"transfers_lost"` // beyond the limit
	Lines     []Line           `json:"lines"`          // of the log: fences, rails and sessions that come and go
	LostLines int              `json:"lines_lost"`
}

// TracedTransfer is a transfer that ended during a trace. Its times are microseconds since the trace's Now.
type TracedTransfer struct {
	Peer   string   `json:"peer"` // "": its session is no longer known
	Op     string   `json:"op"`
	Bytes  uint64   `json:"bytes"`
	Rails  []string `json:"rails"`    // our rails
	Begin  float64  `json:"begin_us"` // negative: it was posted before
	End    float64  `json:"end_us"`
	Status string   `json:"status"` // NIXL_SUCCESS, or why it failed
	Coarse bool     `json:"coarse"` // Begin may be four milliseconds off
}
