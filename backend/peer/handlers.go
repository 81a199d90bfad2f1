package peer

import (
	"net/netip"

	"gorail/backend/wire"
)

// InitiatorHandler handles the events of an initiator's session. The calls come from the session's goroutine, one at
// a time: Offers first, then Ready, then the others, Lost last. A call that is running during Close may continue, and
// no call begins after Close. The handler owns the slices in the arguments. A panic ends the session with ErrHandler. It is an interface
// because what a frame means is known above, and simulations of the control channel put an application of their own there.
type InitiatorHandler interface {
	// Offers opens the endpoints for this peer. It is called once, when a target has answered. An error ends the
	// session and is wrapped.
	Offers() ([]wire.EndpointOffer, error)
	// Ready reports that the target serves us, with the target's endpoints and the next notification that it expects.
	Ready(w wire.Welcome)
	// Keys answers one call of Out.Keys, of any size: entry i belongs to range i.
	Keys(k wire.Keys)
	// Revoke requires a call of Out.Revoked with the same id as soon as nothing of ours is in flight on the regions.
	// Revoke must not wait for that itself. The regions of one revocation may come in several calls, and each call
	// needs its answer.
	Revoke(id uint64, regions []uint64)
	// Renew is Revoke for regions that stay registered: transfers go on with new keys.
	Renew(id uint64, regions []uint64)
	// Fenced answers a call of Out.Fence. Without an id it is a request from the target's In.WantFence.
	Fenced(f wire.Fenced)
	// Staged passes a target's frame of staging, *wire.Ring, *wire.Copied or *wire.PackedCopied, or a *wire.Handles.
	Staged(f wire.Frame)
	// Drained answers a call of Out.Drain: all notifications below next have arrived.
	Drained(next uint64)
	// Snapshot passes the answer to a call of Out.AskSnapshot. A target may also send one that nobody has asked for.
	Snapshot(f wire.Snapshot)
	// Wider says that the target's host memory has keys of more rails.
	Wider(rails []wire.Rail)
	// Resumed says that the session goes on over another connection, between these addresses: the network carries it there.
	Resumed(own, peer netip.Addr)
	// Moved passes new control addresses of the target's engine. This session dials them by itself.
	Moved(control []string)
	// Moves returns what the session's WRITEs and READs have moved, for pings and their answers. Any goroutine calls it. It must not wait.
	Moves() wire.Moves
	// Lost reports the end of the session, exactly once, unless Out.Close or Node.Close ended it.
	Lost(err error)
}

// Accept is a target's answer to a Hello.
type Accept struct {
	Offers  []wire.EndpointOffer // the target's endpoints for this initiator
	NextSeq uint64               // all notifications of session Hello.After below it have been received,
	Have    []uint16             // and those at these distances above it
}

// TargetHandler serves the sessions of all initiators. The calls of one session come one at a time and in order.
// Calls of different sessions run concurrently. The handler owns the slices in the arguments, and the session owns
// the returned slices. A panic ends the session with ErrHandler. It is an interface for the reason of InitiatorHandler.
type TargetHandler interface {
	// Hello admits an authenticated initiator. An error refuses the initiator and its text is sent. A *RejectError
	// chooses the code.
	Hello(in *In, h wire.Hello) (Accept, error)
	// KeysWanted returns one entry for each range. It gets at most wire.MaxRanges ranges at a time. stays: see wire.Keys.
	KeysWanted(in *In, ranges []wire.Claim) (entries []wire.KeyEntry, stays bool)
	// Revoked answers one call of In.Revoke, of any size.
	Revoked(in *In, id uint64, all bool)
	// Fence closes the initiator's endpoint on a rail before it returns, opens another if f has an address, and requires a call of
	// In.Fenced, then or later. An error ends the session and its text is sent.
	Fence(in *In, f wire.Fence) error
	// Stage passes an initiator's frame of staging, *wire.RingReq, *wire.Copy or *wire.PackedCopy, or a *wire.HandlesReq. An error ends the
	// session and its text is sent.
	Stage(in *In, f wire.Frame) error
	// Drain requires a call of In.Drained as soon as all notifications below next have arrived. Drain must not wait
	// for that itself.
	Drain(in *In, next uint64)
	// Snapshot answers a question for our view of the session by one call of In.Snapshot with its id. It must not wait.
	Snapshot(in *In, id uint64)
	// Resumed says that the session goes on over another connection, between these addresses: the network carries it there.
	Resumed(in *In, own, peer netip.Addr)
	// Moved passes new control addresses of the initiator's engine. It must not wait.
	Moved(in *In, control []string)
	// Gone reports the end of a session, exactly once for every In whose Hello returned no error. ErrClosed: this
	// side ended it.
	Gone(in *In, err error)
}
