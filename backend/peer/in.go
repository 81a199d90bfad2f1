package peer

import (
	"fmt"
	"net/netip"
	"sync"

	"gorail/backend/peer/stream"
	"gorail/backend/wire"
)

// In is a session with an initiator that we serve. Safe for concurrent use; no method waits.
type In struct {
	stream *stream.Stream
	target TargetHandler
	own    *wire.ConnBlob // of the node
	env    *stream.Env
	agent  string
	engine wire.EngineID
	id     uint64
	source netip.Addr // where the initiator's connection came from

	mu      sync.Mutex
	revokes map[uint64]*revoking
}

// revoking is a call of In.Revoke whose answers are due.
type revoking struct {
	left int  // frames not answered yet
	all  bool // all answers so far said so
}

func newIn(b *base, target TargetHandler, h *wire.Hello, source netip.Addr) *In {
	in := &In{target: target, own: &b.cfg.Identity, env: b.env, agent: h.Agent, engine: h.Engine, id: h.Session, source: source,
		revokes: make(map[uint64]*revoking)}
	in.stream = stream.New(b.env, label(h.Agent, h.Engine), Hello, requests{in}, nil)
	return in
}

// Agent is the initiator's agent.
func (in *In) Agent() string { return in.agent }

// Engine is the initiator's engine.
func (in *In) Engine() wire.EngineID { return in.engine }

// Session is the initiator's number of the session: later ones of the same engine are higher.
func (in *In) Session() uint64 { return in.id }

// Source is the address that the initiator's connection came from, of IPv6 the /64.
func (in *In) Source() netip.Addr { return in.source }

// Done is closed when the session ends.
func (in *In) Done() <-chan struct{} { return in.stream.Context().Done() }

// HungUp says that the initiator has closed the session's connection, or is gone: what is still to be done for its Hello would be in vain.
func (in *In) HungUp() bool { return in.stream.HungUp() }

// State is where the session stands.
func (in *In) State() State { return in.stream.State() }

// Remote is where its connection comes from; the zero Addr while there is none.
func (in *In) Remote() netip.Addr { return in.stream.Remote() }

// String names the initiator in errors and logs.
func (in *In) String() string { return in.stream.Peer() }

// Revoke tells the initiator that regions are going away; TargetHandler.Revoked answers, once, unless the session ends
// before. id must not be in use by another revocation of the session. The regions belong to the session from now on.
func (in *In) Revoke(id uint64, regions []uint64) {
	frames := make([]wire.Frame, 0, 1+len(regions)/wire.MaxRevoke)
	for first := true; first || len(regions) > 0; first = false {
		n := min(len(regions), wire.MaxRevoke)
		frames = append(frames, &wire.Revoke{ID: id, Regions: regions[:n:n]})
		regions = regions[n:]
	}
	in.mu.Lock()
	in.revokes[id] = &revoking{left: len(frames), all: true}
	in.mu.Unlock()
	in.stream.Send(frames...)
}

// WantFence asks the initiator to fence a rail of ours: our endpoint there has failed, which the other end need not notice.
// On the wire it is the answer to a fence that was never asked for: no id and no address. InitiatorHandler.Fenced has it.
func (in *In) WantFence(rail uint8, epoch uint32) {
	in.stream.Send(&wire.Fenced{Rail: rail, Epoch: epoch})
}

// Staged answers a call of TargetHandler.Stage: a *wire.Ring or *wire.Copied, which belongs to the session from now on.
func (in *In) Staged(f wire.Frame) { in.stream.Send(f) }

// Drained answers a call of TargetHandler.Drain.
func (in *In) Drained(next uint64) { in.stream.Send(&wire.Drained{Next: next}) }

// Suspect says that the rail with a local address is in trouble: if the session's connection leaves from it, the connection
// is closed, and the initiator resumes the session over another path. The zero address means any connection.
func (in *In) Suspect(local netip.Addr, why string) { in.stream.GiveUp(local, why) }

// Close ends the session and tells the initiator why; TargetHandler.Gone follows.
func (in *In) Close(reason string) {
	in.stream.End(Closed, fmt.Errorf("%w: %s: %s", ErrClosed, in.stream.Peer(), reason), in.stream.Bye(reason))
}

// admitted asks the handler for its answer to a proved Hello.
func (in *In) admitted(h *wire.Hello) (*wire.Welcome, error) {
	w := &wire.Welcome{Version: wire.Version, Engine: in.own.Engine, Agent: in.own.Agent, Session: h.Session}
	err := in.env.Guard(in.String(), "hello", func() error {
		a, err := in.target.Hello(in, *h)
		w.Offers, w.NextSeq, w.Have = a.Offers, a.NextSeq, a.Have
		return err
	})
	return w, err
}

// requests are an initiator's frames.
type requests struct{ in *In }

// Handle implements stream.Handler.
func (r requests) Handle(f wire.Frame) error {
	in, target := r.in, r.in.target
	switch f := f.(type) {
	case *wire.KeysReq:
		entries := target.KeysWanted(in, f.Ranges)
		if len(entries) != len(f.Ranges) {
			return fmt.Errorf("%w: %s: %d entries for %d ranges", ErrHandler, in.stream.Peer(), len(entries), len(f.Ranges))
		}
		in.stream.WaitRoom()
		in.stream.Send(&wire.Keys{ID: f.ID, Entries: entries})
	case *wire.Revoked:
		if all, done := in.answered(f); done {
			target.Revoked(in, f.ID, all)
		}
	case *wire.Fence:
		fenced, err := target.Fence(in, *f)
		if err != nil {
			return fmt.Errorf("%w: %s: fence of rail %d: %w", ErrHandler, in.stream.Peer(), f.Rail, err)
		}
		in.stream.Send(&fenced)
	case *wire.RingReq, *wire.Copy:
		if err := target.Stage(in, f); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrHandler, in.stream.Peer(), err)
		}
	case *wire.Drain:
		target.Drain(in, f.Next)
	default:
		return in.stream.Unexpected(f)
	}
	return nil
}

// answered counts an answer of a revocation; done with the last one. Answers that nobody waits for are dropped.
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
