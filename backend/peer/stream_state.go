package peer

import "fmt"

// State of a session. The comment of package peer has the diagram.
type State uint8

// The states.
const (
	Dialing State = iota // tries the target's addresses
	Hello                // the handshake is in progress
	Ready                // in use; the connection may be replaced meanwhile
	Lost                 // ended by the peer or by a failure
	Closed               // ended by this side
)

// Over reports whether the session has ended.
func (s State) Over() bool { return s >= Lost }

// String returns the state's name.
func (s State) String() string {
	names := [...]string{"dialing", "hello", "ready", "lost", "closed"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}
