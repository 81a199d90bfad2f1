package stream

import "fmt"

// State of a session; package peer's comment has the diagram.
type State uint8

// The states.
const (
	Dialing State = iota // looking for an address that answers
	Hello                // inHandshake hands
	Ready                // serving, though its connection may just be replaced by another
	Lost                 // ended by the peer or by a failure
	Closed               // ended by this side
)

// Over says that the session has ended.
func (s State) Over() bool { return s >= Lost }

// String is the state's name.
func (s State) String() string {
	names := [...]string{"dialing", "hello", "ready", "lost", "closed"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}
