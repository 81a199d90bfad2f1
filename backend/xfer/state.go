package xfer

import (
	"errors"
	"fmt"
)

// State is where a transfer stands.
//
//	             +----------- repost -----------------+-------------+
//	             v                                    |             |
//	Prepped -> Queued -----> Posted ---------------> Done        Failed
//	   |         |  ^         |  ^                    ^             ^
//	   |         |  |         |  | replay             |             |
//	   |         |  |         v  |                    |             |
//	   |         |  +------- Draining ----------------+-------------+
//	   |         |            |                                     |
//	   |         +------------|-- deadline or peer lost ------------+
//	   |         |            v
//	   |         +-------> Cancelled
//	   |
//	   +--> Posted (the peer is ready: no queueing), as Done and Failed do on a repost
//
//	any -> Released
//
// A terminal state (Done, Failed, Cancelled) is entered only when no work request of the transfer is posted any more;
// that is why Posted never goes to Failed or Cancelled directly: errors drain first.
//
// Released means that the agent's handle is gone. Entered from Queued, Posted or Draining it is a zombie: it stays in
// the active set, because its work requests still use memory, until the owner frees it.
type State uint32

// The states of a transfer.
const (
	Prepped   State = iota // planned, never posted
	Queued                 // posted by the agent; waits for the peer or for keys, nothing is on the wire
	Posted                 // work requests are, or are about to be, on the wire
	Draining               // an error or a cancellation: nothing new is posted, what is posted runs out
	Done                   // ended well
	Failed                 // ended in an error; may be posted again
	Cancelled              // ended by disconnect, deregistration or the engine's end
	Released               // the agent's handle is gone
	states
)

var stateNames = [states]string{"prepped", "queued", "posted", "draining", "done", "failed", "cancelled", "released"}

// String is the lower-case name for logs.
func (s State) String() string {
	if s >= states {
		return fmt.Sprintf("state(%d)", uint32(s))
	}
	return stateNames[s]
}

// Active says that the agent sees the transfer in progress in this state.
func (s State) Active() bool { return s == Queued || s == Posted || s == Draining }

// Terminal says that the transfer has a final status in this state.
func (s State) Terminal() bool { return s == Done || s == Failed || s == Cancelled }

// set is a bit per state.
type set uint32

func of(list ...State) (b set) {
	for _, s := range list {
		b |= 1 << s
	}
	return b
}

var allowed = [states]set{
	Prepped:   of(Queued, Posted, Released),
	Queued:    of(Posted, Failed, Cancelled, Released),
	Posted:    of(Draining, Done, Released),
	Draining:  of(Posted, Queued, Done, Failed, Cancelled, Released),
	Done:      of(Queued, Posted, Released),
	Failed:    of(Queued, Posted, Released),
	Cancelled: of(Released),
	Released:  0,
}

// Allowed says whether the diagram has an arrow from one state to the other.
func Allowed(from, to State) bool {
	return from < states && to < states && allowed[from]&(1<<to) != 0
}

// ErrTransition is what a TransitionError wraps.
var ErrTransition = errors.New("transfer cannot change its state so")

// TransitionError says which step was refused.
type TransitionError struct {
	Handle   Handle
	From, To State
}

// Error names the transfer and both states.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("transfer %v: %v: %v -> %v", e.Handle, ErrTransition, e.From, e.To)
}

// Unwrap gives ErrTransition.
func (e *TransitionError) Unwrap() error { return ErrTransition }
