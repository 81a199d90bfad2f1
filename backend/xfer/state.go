package xfer

import "fmt"

// State is where a transfer stands in Go. Whether the core is at it, and how its last run ended, is in the core's slot.
//
//	        Begin             Post
//	Idle ----------> Queued -------> Posted
//	  ^                |  ^            | |
//	  |                |  +-- Begin ---+ |
//	  +----- Rest -----+-----------------+
//
//	any -> Freed (Free)
//
// A transfer is active from Begin until Rest or Free: it may have something in flight. One that has ended stays Posted, and active, until it is
// posted again (which takes no lock then) or rests. An agent's release changes nothing here: what is in flight must drain before Free.
type State uint32

// The states of a transfer.
const (
	Idle   State = iota // never posted, or ended and looked at since
	Queued              // posted by the agent; waits for the peer or for keys, nothing is on the wire
	Posted              // the core has it, or has had it
	Freed               // its handle is stale
)

var stateNames = [...]string{"idle", "queued", "posted", "freed"}

// String is the lower-case name for logs.
func (s State) String() string {
	if int(s) >= len(stateNames) {
		return fmt.Sprintf("state(%d)", uint32(s))
	}
	return stateNames[s]
}

// Begin: the agent posts the transfer. It is Queued and active then. False: it is Queued already, or freed.
func (t *Table[T]) Begin(r *Record[T]) bool {
	if r.move(Posted, Queued) {
		return true // active still
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !r.move(Idle, Queued) && !r.move(Posted, Queued) {
		return false
	}
	t.activate(r)
	return true
}

// Post: what is Queued goes to the core. It decides races: who takes it from the queue. No lock is taken.
func (r *Record[T]) Post() bool { return r.move(Queued, Posted) }

// Rest: the transfer has ended, or was taken from the queue; it is active no more. False: it was not active.
func (t *Table[T]) Rest(r *Record[T]) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !r.move(Posted, Idle) && !r.move(Queued, Idle) {
		return false
	}
	t.deactivate(r)
	return true
}

func (r *Record[T]) move(from, to State) bool {
	return r.state.CompareAndSwap(uint32(from), uint32(to))
}
