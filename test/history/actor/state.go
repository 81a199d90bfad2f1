package actor

import (
	"time"

	"gorail/nixlapi"
	"gorail/test/history"
	"gorail/test/history/record"
)

// Begin describes an actor.
type Begin struct {
	Seed    uint64
	Engine  history.Engine
	Names   []string // of all agents; the number of an agent is its place
	Backend string
	Params  map[string]string
	Wheel   string
	Arena   string // see ArenaPath
	Log     string // file of the history
	Calm    bool   // it only transfers and notifies: nothing is released, taken back or loaded again
}

// actor is the agent and its state. All of it belongs to one thread.
type actor struct {
	Begin
	agent   *nixlapi.Agent
	backend *nixlapi.Backend
	record.Calls
	queue   chan func() // commands, run between polls
	mem     *arena
	regions []*region
	peers   map[string]*peer
	steps   uint64
	next    time.Time // of the next step
	running bool      // steps are taken
}

// region is memory of ours that one life of an initiator uses.
type region struct {
	index     int
	initiator string
	group     int
	held      bool      // deregistered
	until     time.Time // when it is registered again
	took      uint64    // number of the deregistration
	broken    bool      // deregistration has failed: it is not used again
	wanted    time.Time // it is taken back in the middle of a WRITE, or at this time; zero: not at all
	hold      time.Duration
}

// peer is a target of ours.
type peer struct {
	engine history.Engine
	blob   []byte
	mem    *arena
	region int
	notes  uint64 // number of the latest notification
	known  bool   // loaded; the agent may have removed it since
	rest   time.Time
	sides  [2]*side // of WRITEs, of READs
	load   *Load    // is loaded when the transfers in flight have ended
}

// side is the local memory of one direction: one registration.
type side struct {
	what       history.What
	buf        *nixlapi.Buffer
	slots      []*slot
	registered bool
}

// slot is one piece of local memory, its counterpart at the peer, and the request between them.
type slot struct {
	*side
	index         int
	local, remote []byte
	req           *nixlapi.Xfer
	op            *op // in flight

	here, there uint64    // seeds of the bytes that both must have; there: of WRITEs
	generation  uint64    // of there, if that is not the canary
	rest        time.Time // after an end without success the slot is left alone, so that what comes late is seen
	draining    bool      // the remote bytes may change until they are taken back
	last        op        // that ended last
	lastResult  history.Result
}

// op is a transfer.
type op struct {
	number     uint64
	generation uint64    // of the region, before the post
	release    time.Time // zero: never
	clear      bool      // both places are overwritten after a success
	taken      bool      // the local memory was deregistered in flight
	wrong      int64     // then: what a READ had there
}

// Load is a peer's metadata.
type Load struct {
	Engine history.Engine
	Blob   []byte
	Arena  string
	Base   uint64 // address of the arena in the peer's process
}

func (a *actor) number(name string) int {
	for i, n := range a.Names {
		if n == name {
			return i
		}
	}
	return -1
}

// regionOf is the region of an initiator's life, at every target.
func (a *actor) regionOf(initiator history.Engine) int {
	return a.number(initiator.Agent)*Groups + initiator.Life%Groups
}
