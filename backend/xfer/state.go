package xfer

import "fmt"

// State is the state of a transfer in Go. The core's slot says whether it is in progress and how its last run ended.
//
//	        Begin             Post
//	Idle ----------> Queued -------> Posted
//	  ^                |  ^            | |
//	  |                |  +-- Begin ---+ |
//	  +---- Retire ----+-----------------+
//
//	any -> Freed (Free)
//
// A transfer is active from Begin until Retire or Free: it may have operations in flight. An ended transfer stays Posted and
// active until it is posted again or retired. Posting it again takes no lock. The agent's release changes no state here:
// operations in flight must drain before Free.
type State uint32

// The states of a transfer.
const (
	Idle   State = iota // never posted, or ended and retired
	Queued              // posted by the agent; waits for the peer or for keys, nothing is on the wire
	Posted              // handed to the core
	Freed               // its handle is stale
)

var stateNames = [...]string{"idle", "queued", "posted", "freed"}

// String returns the lower-case name for logs.
func (s State) String() string {
	if int(s) >= len(stateNames) {
		return fmt.Sprintf("state(%d)", uint32(s))
	}
	return stateNames[s]
}

// Begin makes the transfer Queued and active, because the agent posts it. False: it is Queued already, or freed.
func (t *Table[T]) Begin(r *Record[T]) bool {
	if r.transition(Posted, Queued) {
		return true // still active
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !r.transition(Idle, Queued) && !r.transition(Posted, Queued) {
		return false
	}
	t.activate(r)
	return true
}

// Post marks a Queued transfer as handed to the core. Only one caller wins a race for it. Post takes no lock.
func (r *Record[T]) Post() bool { return r.transition(Queued, Posted) }

// Retire makes the transfer Idle and inactive, after it has ended or left the queue. False: it was not active.
func (t *Table[T]) Retire(r *Record[T]) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !r.transition(Posted, Idle) && !r.transition(Queued, Idle) {
		return false
	}
	t.deactivate(r)
	return true
}

func (r *Record[T]) transition(from, to State) bool {
	return r.state.CompareAndSwap(uint32(from), uint32(to))
}
