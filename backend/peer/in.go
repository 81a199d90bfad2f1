package peer

import (
	"fmt"
	"net/netip"
	"sync"

	"gorail/backend/wire"
)

// In is a session with an initiator that we serve. Safe for concurrent use; no method waits.
type In struct {
	session *session
	agent   string
	engine  wire.EngineID
	id      uint64

	mu      sync.Mutex
	revokes map[uint64]*revoking
}

// revoking is a call of In.Revoke whose answers are due.
type revoking struct {
	left int  // frames not answered yet
	all  bool // all answers so far said so
}

func newIn(n *Node, h *wire.Hello) *In {
	in := &In{agent: h.Agent, engine: h.Engine, id: h.Session, revokes: make(map[uint64]*revoking)}
	in.session = n.newSession(true, Hello, label(h.Agent, h.Engine))
	in.session.handle = in.handle
	return in
}

// Agent is the initiator's agent.
func (in *In) Agent() string { return in.agent }

// Engine is the initiator's engine.
func (in *In) Engine() wire.EngineID { return in.engine }

// Session is the initiator's number of the session: later ones of the same engine are higher.
func (in *In) Session() uint64 { return in.id }

// Source is the address that the initiator's connection came from, of IPv6 the /64.
func (in *In) Source() netip.Addr { return in.session.source }

// Done is closed when the session ends.
func (in *In) Done() <-chan struct{} { return in.session.ctx.Done() }

// HungUp says that the initiator has closed the session's connection, or is gone: what is still to be done for its Hello would be in vain.
func (in *In) HungUp() bool {
	in.session.mu.Lock()
	l := in.session.line
	in.session.mu.Unlock()
	return l == nil || leftAlone(l.conn)
}

// State is where the session stands.
func (in *In) State() State { return in.session.State() }

// Remote is where its connection comes from; the zero Addr while there is none.
func (in *In) Remote() netip.Addr { return in.session.remote() }

// String names the initiator in errors and logs.
func (in *In) String() string { return in.session.peer }

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
	in.session.send(frames...)
}

// WantFence asks the initiator to fence a rail of ours: our endpoint there has failed, which the other end need not notice.
// On the wire it is the answer to a fence that was never asked for: no id and no address. InitiatorHandler.Fenced has it.
func (in *In) WantFence(rail uint8, epoch uint32) {
	in.session.send(&wire.Fenced{Rail: rail, Epoch: epoch})
}

// Staged answers a call of TargetHandler.Stage: a *wire.Ring or *wire.Copied, which belongs to the session from now on.
func (in *In) Staged(f wire.Frame) { in.session.send(f) }

// Drained answers a call of TargetHandler.Drain.
func (in *In) Drained(next uint64) { in.session.send(&wire.Drained{Next: next}) }

// Suspect says that the rail with a local address is in trouble: if the session's connection leaves from it, the connection
// is closed, and the initiator resumes the session over another path. The zero address means any connection.
func (in *In) Suspect(local netip.Addr, why string) {
	in.session.mu.Lock()
	l, ready := in.session.line, in.session.state == Ready
	in.session.mu.Unlock()
	if ready && l != nil && l.over(local) {
		in.session.broke(l, fmt.Errorf("given up: %s", why))
	}
}

// Close ends the session and tells the initiator why; TargetHandler.Gone follows.
func (in *In) Close(reason string) {
	in.session.end(Closed, fmt.Errorf("%w: %s: %s", ErrClosed, in.session.peer, reason), in.session.bye(reason))
}

// admitted asks the handler for its answer to a proved Hello.
func (in *In) admitted(h *wire.Hello) (*wire.Welcome, error) {
	w := &wire.Welcome{Version: wire.Version, Engine: in.session.node.cfg.Identity.Engine,
		Agent: in.session.node.cfg.Identity.Agent, Session: h.Session}
	err := in.session.guard("hello", func() error {
		a, err := in.session.node.target.Hello(in, *h)
		w.Offers, w.NextSeq, w.Have = a.Offers, a.NextSeq, a.Have
		return err
	})
	return w, err
}

func (in *In) handle(f wire.Frame) error {
	target := in.session.node.target
	switch f := f.(type) {
	case *wire.KeysReq:
		entries := target.KeysWanted(in, f.Ranges)
		if len(entries) != len(f.Ranges) {
			return fmt.Errorf("%w: %s: %d entries for %d ranges", ErrHandler, in.session.peer, len(entries), len(f.Ranges))
		}
		in.session.queue.waitRoom()
		in.session.send(&wire.Keys{ID: f.ID, Entries: entries})
	case *wire.Revoked:
		if all, done := in.answered(f); done {
			target.Revoked(in, f.ID, all)
		}
	case *wire.Fence:
		fenced, err := target.Fence(in, *f)
		if err != nil {
			return fmt.Errorf("%w: %s: fence of rail %d: %w", ErrHandler, in.session.peer, f.Rail, err)
		}
		in.session.send(&fenced)
	case *wire.RingReq, *wire.Copy:
		if err := target.Stage(in, f); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrHandler, in.session.peer, err)
		}
	case *wire.Drain:
		target.Drain(in, f.Next)
	default:
		return in.session.unexpected(f)
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
