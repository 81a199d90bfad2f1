package peer

import "gorail/backend/wire"

// InitiatorHandler is what an initiator makes of its session. The calls come from the session's goroutine, one at a time:
// Offers first, then Ready, then the others, Lost last. A call that had begun when Close was called may still run; none begins
// afterwards. Slices in the arguments belong to the handler. A panic ends the session with ErrHandler.
type InitiatorHandler interface {
	// Offers opens the endpoints for this peer, once, when a target has answered. An error ends the session; it is wrapped.
	Offers() ([]wire.EndpointOffer, error)
	// Ready says that the target serves us: its endpoints and the next notification that it wants.
	Ready(w wire.Welcome)
	// Keys answers one call of Out.Keys, whatever its size: entry i belongs to range i.
	Keys(k wire.Keys)
	// Revoke wants a call of Out.Revoked with the same id once nothing of ours is in flight on the regions; it must not
	// wait for that itself. Regions of one revocation may come in several calls, each of which wants its answer.
	Revoke(id uint64, regions []uint64)
	// Fenced answers a call of Out.Fence; with no id it is the target's In.WantFence.
	Fenced(f wire.Fenced)
	// Staged has a target's frame of staging: *wire.Ring or *wire.Copied.
	Staged(f wire.Frame)
	// Drained answers a call of Out.Drain: all notifications below next have arrived.
	Drained(next uint64)
	// Lost ends the session: exactly once, unless Out.Close or Node.Close ended it.
	Lost(err error)
}

// Accept is a target's answer to a Hello.
type Accept struct {
	Offers  []wire.EndpointOffer // the target's endpoints for this initiator
	NextSeq uint64               // all notifications below it of the session Hello.After have been taken in,
	Have    []uint16             // and those so far beyond it
}

// TargetHandler serves the sessions of all initiators. The calls of one session come one at a time and in order, those of
// different sessions at the same time. Slices in the arguments belong to the handler, those returned to the session.
// A panic ends the session with ErrHandler.
type TargetHandler interface {
	// Hello admits an initiator that has proved itself. An error refuses it: its text is sent; a *RejectError chooses the code.
	Hello(in *In, h wire.Hello) (Accept, error)
	// KeysWanted gives one entry for each range. It gets at most wire.MaxRanges ranges at a time.
	KeysWanted(in *In, ranges []wire.Range) []wire.KeyEntry
	// Revoked answers one call of In.Revoke, whatever its size.
	Revoked(in *In, id uint64, all bool)
	// Fence closes the initiator's endpoint on a rail and opens another. An error ends the session; its text is sent.
	Fence(in *In, f wire.Fence) (wire.Fenced, error)
	// Stage has an initiator's frame of staging: *wire.RingReq or *wire.Copy. An error ends the session; its text is sent.
	Stage(in *In, f wire.Frame) error
	// Drain wants a call of In.Drained once all notifications below next have arrived; it must not wait for that itself.
	Drain(in *In, next uint64)
	// Gone ends a session: exactly once for every In whose Hello gave no error, whoever ended it (ErrClosed: this side).
	Gone(in *In, err error)
}
