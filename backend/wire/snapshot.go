package wire

import (
	"fmt"
	"time"
)

// Frames of snapshots. A transfer of the initiator has made no progress, and its report says what the target sees. A
// Snapshot has numbers alone: nothing in it is text of the peer.

// SnapshotReq asks the target for its view of the session.
type SnapshotReq struct {
	_  struct{} `cbor:",toarray"`
	ID uint64
}

// Snapshot answers a SnapshotReq. Without an Uptime only ID and State mean something. From NextSeq on it is about sessions that are
// SnapshotServing or SnapshotEnding.
type Snapshot struct {
	_     struct{} `cbor:",toarray"`
	ID    uint64
	State SnapshotState

	Uptime    Ago    // since the target's engine began
	Late      Ago    // how late the target's ticker was at most, in the last ten to twenty seconds
	Heard     Ago    // since the target last heard the initiator on the control channel
	Sessions  uint32 // that the target serves, of all initiators
	Transfers uint32 // of the target's own, in flight to any peer

	NextSeq uint64 // all notifications of the session below it have arrived
	Waiting uint32 // notifications that wait for an earlier one or for a part
	Rings   uint32 // sets of bounce buffers of the session
	Copies  uint32 // copies for the session in progress
	Links   []LinkView
}

// LinkView is the target's end of one link.
type LinkView struct {
	_           struct{} `cbor:",toarray"`
	Number      uint8    // the link's index in the Hello's offers
	State       LinkState
	Ops         uint32 // messages that the target has in flight
	Bytes       uint64 // of them
	Queued      uint32 // messages that the target has still to send
	Credits     uint32 // messages that the target may send
	Received    uint64 // messages of the initiator
	Completions uint64
	Errors      uint64
	Progress    Ago // since the last completion
}

// SnapshotState is the state of a session at its target.
type SnapshotState uint8

// The states of a session.
const (
	SnapshotServing SnapshotState = iota + 1
	SnapshotEnding                // it takes nothing more in
	SnapshotNone                  // the target has no such session, or has ended it
	SnapshotBusy                  // the target opens or closes endpoints of the session
	SnapshotRefused               // peers ask too often
)

var snapshotStates = [...]string{SnapshotServing: "serving", SnapshotEnding: "ending", SnapshotNone: "none", SnapshotBusy: "busy with endpoints", SnapshotRefused: "refused"}

// String returns the state's name for logs.
func (s SnapshotState) String() string {
	if s >= SnapshotServing && int(s) < len(snapshotStates) {
		return snapshotStates[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// LinkState is the state of the target's end of a link.
type LinkState uint8

// The states of a link.
const (
	LinkClosed   LinkState = iota // it has no endpoint
	LinkUp                        // messages have come in over it
	LinkUnproved                  // nothing has come in yet
	LinkStopped                   // it waits for a fence
)

var linkStates = [...]string{LinkClosed: "closed", LinkUp: "up", LinkUnproved: "not proved", LinkStopped: "stopped"}

// String returns the state's name for logs.
func (s LinkState) String() string {
	if int(s) < len(linkStates) {
		return linkStates[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Ago is a time that has passed, in milliseconds, plus one. 0: there is none.
type Ago uint64

// maxAgo is 34 years. It fits a time.Duration.
const maxAgo = 1 << 40

// NewAgo rounds d to milliseconds. Below 0 and above 34 years it takes the nearest value.
func NewAgo(d time.Duration) Ago {
	return Ago(min(max(d.Round(time.Millisecond).Milliseconds(), 0), maxAgo-1) + 1)
}

// Duration returns the time. false: there is none.
func (a Ago) Duration() (d time.Duration, ok bool) {
	return time.Duration(max(a, 1)-1) * time.Millisecond, a > 0
}

// Type methods implement Frame.
func (*SnapshotReq) Type() FrameType { return TypeSnapshotReq }
func (*Snapshot) Type() FrameType    { return TypeSnapshot }

func (*SnapshotReq) check() error { return nil }

func (f *Snapshot) check() error {
	if f.State < SnapshotServing || int(f.State) >= len(snapshotStates) {
		return fmt.Errorf("%w: snapshot of a session in %v", ErrFormat, f.State)
	}
	if err := firstError(checkAgo(f.Uptime, f.Late, f.Heard), limit("links", len(f.Links), MaxRails)); err != nil {
		return err
	}
	next := 0
	for _, l := range f.Links {
		switch {
		case int(l.Number) < next:
			return fmt.Errorf("%w: snapshot: link %d is not in order", ErrFormat, l.Number)
		case int(l.State) >= len(linkStates):
			return fmt.Errorf("%w: snapshot: link in %v", ErrFormat, l.State)
		}
		if err := firstError(limit("number of a link", int(l.Number), MaxRails-1), checkAgo(l.Progress)); err != nil {
			return err
		}
		next = int(l.Number) + 1
	}
	return nil
}

func checkAgo(times ...Ago) error {
	for _, a := range times {
		if a > maxAgo {
			return fmt.Errorf("%w: snapshot: %d ms", ErrLimit, a)
		}
	}
	return nil
}
