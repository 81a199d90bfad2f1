package peer

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/limits"
	"gorail/backend/trust"
	"gorail/backend/wire"
)

// In is an inbound session with an initiator. It is safe for concurrent use, and no method waits.
type In struct {
	stream  *stream
	target  TargetHandler
	own     *wire.ConnBlob // the node's own blob
	env     *streamEnv
	agent   string
	engine  wire.EngineID
	id      uint64
	renewal *renewal     // constant
	owner   limits.Owner // constant, see Owner

	control atomic.Pointer[[]string] // see Control

	mu      sync.Mutex
	revokes map[uint64]*revoking
}

// revoking is a call of In.Revoke that is not fully answered.
type revoking struct {
	left int  // frames not answered yet
	all  bool // all answers so far have All set
}

func newIn(b *base, target TargetHandler, h *wire.Hello, owner limits.Owner) *In {
	in := &In{target: target, own: &b.cfg.Identity, env: b.env, agent: h.Agent, engine: h.Engine, id: h.Session, owner: owner,
		revokes: make(map[uint64]*revoking)}
	in.stream = newStream(b.env, label(h.Agent, h.Engine), Hello, in.handle, nil)
	in.stream.resumed = func(own, peer netip.Addr) { target.Resumed(in, own, peer) }
	in.renewal = &renewal{s: in.stream, renew: func() { in.stream.GiveUp(netip.Addr{}, "the identities of both ends are proved again") }}
	return in
}

// Agent returns the initiator's agent.
func (in *In) Agent() string { return in.agent }

// Engine returns the initiator's engine.
func (in *In) Engine() wire.EngineID { return in.engine }

// Session returns the initiator's number of the session. Later sessions of the same engine have higher numbers.
func (in *In) Session() uint64 { return in.id }

// Owner returns who the session counts for: the address that the initiator's first connection came from, for IPv6 its
// /64, and the identity that its certificate proved then.
func (in *In) Owner() limits.Owner { return in.owner }

// Done is closed when the session ends.
func (in *In) Done() <-chan struct{} { return in.stream.Context().Done() }

// Control returns the control addresses of the initiator's engine; nil: it has not said that they are others than its blob's.
func (in *In) Control() []string {
	if at := in.control.Load(); at != nil {
		return *at
	}
	return nil
}

// HungUp reports whether the initiator has closed the session's connection or is gone. Further work for its Hello is
// then useless.
func (in *In) HungUp() bool { return in.stream.HungUp() }

// State returns the session's state.
func (in *In) State() State { return in.stream.State() }

// Told returns what the initiator has said of the bytes that it moved.
func (in *In) Told() Told { return in.stream.r.told.read() }

// LinkSecret derives the secret of a link, from the Hello on. The caller wipes it.
func (in *In) LinkSecret(n trust.LinkName) *trust.LinkSecret { return in.stream.LinkSecret(n) }

// KeySalt is the salt of the session's keys of regions, from the Hello on. It stays the same when the session is resumed.
func (in *In) KeySalt() [16]byte { return in.stream.KeySalt() }

// String returns the initiator's name for errors and logs.
func (in *In) String() string { return in.stream.Peer() }

// Revoke announces to the initiator that regions are deregistered. TargetHandler.Revoked answers once, unless the
// session ends first. id must not be in use by another revocation of the session. The session owns the regions from
// now on.
func (in *In) Revoke(id uint64, regions []uint64) { in.revoke(id, regions, false) }

// Renew is Revoke for regions that stay registered, with new keys. InitiatorHandler.Renew has the meaning.
func (in *In) Renew(id uint64, regions []uint64) { in.revoke(id, regions, true) }

func (in *In) revoke(id uint64, regions []uint64, renewed bool) {
	frames := make([]wire.Frame, 0, 1+len(regions)/wire.MaxRevoke)
	for first := true; first || len(regions) > 0; first = false {
		n := min(len(regions), wire.MaxRevoke)
		frames = append(frames, &wire.Revoke{ID: id, Regions: regions[:n:n], Renewed: renewed})
		regions = regions[n:]
	}
	in.mu.Lock()
	in.revokes[id] = &revoking{left: len(frames), all: true}
	in.mu.Unlock()
	in.stream.Send(frames...)
}

// Fenced answers a call of TargetHandler.Fence. The session owns the slices from now on.
func (in *In) Fenced(f wire.Fenced) { in.stream.Send(&f) }

// WantFence asks the initiator to fence one of our rails: our endpoint there has failed, and the initiator may not
// notice. The frame is a Fenced without id and address. It arrives at InitiatorHandler.Fenced.
func (in *In) WantFence(rail uint8, epoch uint32) {
	in.stream.Send(&wire.Fenced{Rail: rail, Epoch: epoch})
}

// Wider tells the initiator that our host memory is on more rails. The session owns the slice from now on.
func (in *In) Wider(rails []wire.Rail) { in.stream.Send(&wire.Wider{Rails: rails}) }

// Staged answers a call of TargetHandler.Stage with a *wire.Ring, *wire.Copied, *wire.PackedCopied or *wire.Handles. The session owns the
// frame from now on.
func (in *In) Staged(f wire.Frame) { in.stream.Send(f) }

// Drained answers a call of TargetHandler.Drain.
func (in *In) Drained(next uint64) { in.stream.Send(&wire.Drained{Next: next}) }

// Snapshot answers a call of TargetHandler.Snapshot. The session owns the frame from now on.
func (in *In) Snapshot(f *wire.Snapshot) { in.stream.Send(f) }

// LastHeard is when the initiator last sent anything on the control channel.
func (in *In) LastHeard() time.Time { return in.stream.LastHeard() }

// Suspect reports a failing rail, by its local address. If the session's connection leaves from that address, it
// is closed, and the initiator resumes the session over another path. The zero address matches any connection.
func (in *In) Suspect(local netip.Addr, why string) { in.stream.GiveUp(local, why) }

// Close ends the session and sends the reason to the initiator. TargetHandler.Gone follows.
func (in *In) Close(reason string) {
	in.stream.End(Closed, fmt.Errorf("%w: %s: %s", ErrClosed, in.stream.Peer(), reason), in.stream.Bye(reason))
}

// admitted gets the handler's answer to an authenticated Hello.
func (in *In) admitted(h *wire.Hello, own wire.Identity) (*wire.Welcome, error) {
	w := &wire.Welcome{Agent: in.own.Agent, Session: h.Session, Identity: own}
	err := in.env.Guard(in.String(), "hello", func() error {
		a, err := in.target.Hello(in, *h)
		w.Offers, w.NextSeq, w.Have = a.Offers, a.NextSeq, a.Have
		return err
	})
	return w, err
}

// handle handles an initiator's frames. It is the stream's Handle.
func (in *In) handle(f wire.Frame) error {
	target := in.target
	switch f := f.(type) {
	case *wire.KeysReq:
		entries, stays := target.KeysWanted(in, f.Ranges)
		if len(entries) != len(f.Ranges) {
			return fmt.Errorf("%w: %s: %d entries for %d ranges", ErrHandler, in.stream.Peer(), len(entries), len(f.Ranges))
		}
		in.stream.WaitRoom()
		in.stream.Send(&wire.Keys{ID: f.ID, Entries: entries, Stays: stays})
	case *wire.Revoked:
		if all, done := in.answered(f); done {
			target.Revoked(in, f.ID, all)
		}
	case *wire.Fence:
		if err := target.Fence(in, *f); err != nil {
			return fmt.Errorf("%w: %s: fence of rail %d: %w", ErrHandler, in.stream.Peer(), f.Rail, err)
		}
	case *wire.RingReq, *wire.Copy, *wire.PackedCopy, *wire.HandlesReq:
		if err := target.Stage(in, f); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrHandler, in.stream.Peer(), err)
		}
	case *wire.Drain:
		target.Drain(in, f.Next)
	case *wire.SnapshotReq:
		in.stream.WaitRoom() // for an initiator that asks and does not read
		target.Snapshot(in, f.ID)
	case *wire.Moved:
		in.control.Store(&f.Control)
		target.Moved(in, f.Control)
	default:
		return in.stream.Unexpected(f)
	}
	return nil
}

// answered counts an answer to a revocation. done is true for the last one. Unexpected answers are dropped.
func (in *In) answered(f *wire.Revoked) (all, done bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	r := in.revokes[f.ID]
	if r == nil {
		return false, false
	}
	r.all = r.all && f.All
	if r.left--; r.left > 0 {
		return false, false
	}
	delete(in.revokes, f.ID)
	return r.all, true
}
