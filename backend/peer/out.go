package peer

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"gorail/backend/wire"
)

// Out is a session with a target. Safe for concurrent use; no method waits. What is asked before the session is ready is
// sent once it is; after its end nothing is sent, and nothing answered.
type Out struct {
	session *session
	to      wire.ConnBlob
	after   uint64
	id      atomic.Uint64 // of the last Hello
	handler InitiatorHandler
	offers  []wire.EndpointOffer // of the handler; asked once, by the session's goroutine
	offered bool

	// Guarded by the session's lock.
	proved  map[netip.AddrPort]bool // addresses where the target has answered
	search  *search                 // going on; nil: none
	resumed bool                    // ever
	mark    uint64                  // frames moved when a line was sought last

	mu   sync.Mutex
	asks []ask // frames of keys requests that have no answer yet, in the order sent
}

// ask is one frame of a keys request.
type ask struct {
	id     uint64
	ranges int
	last   bool // of the call
	total  int  // ranges of the call
}

// Dial begins a session with the engine that a connection blob names. It returns at once: the handler learns the outcome.
// after is the session before with that engine, of which notifications may be missing; 0: none. On a closed node the session is Closed from the start, and the handler is not called.
func (n *Node) Dial(to wire.ConnBlob, after uint64, h InitiatorHandler) *Out {
	o := &Out{to: to, after: after, handler: h, proved: make(map[netip.AddrPort]bool)}
	o.session = n.newSession(false, Dialing, label(to.Agent, to.Engine))
	o.session.seek = o.seek
	o.session.handle = (&answers{out: o}).handle
	n.count.dialed.Add(1)
	if !n.add(o.session) {
		o.Close("the engine was destroyed")
		return o
	}
	if !n.spawn(o.run) {
		o.Close("the engine was destroyed")
		n.remove(o.session)
	}
	return o
}

// Peer is the connection blob that was dialed.
func (o *Out) Peer() wire.ConnBlob { return o.to }

// Session is the number that the target knows the session by; each try to connect has a higher one, 0 before the first.
func (o *Out) Session() uint64 { return o.id.Load() }

// State is where the session stands.
func (o *Out) State() State { return o.session.State() }

// Remote is where its connection leads; the zero Addr while there is none.
func (o *Out) Remote() netip.Addr { return o.session.remote() }

// String names the target in errors and logs.
func (o *Out) String() string { return o.session.peer }

// Keys asks for the keys of any number of ranges; one InitiatorHandler.Keys answers. The ranges belong to the session from now on.
func (o *Out) Keys(id uint64, ranges []wire.Range) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.session.State().over() {
		return
	}
	total := len(ranges)
	frames := make([]wire.Frame, 0, 1+total/wire.MaxRanges)
	for first := true; first || len(ranges) > 0; first = false {
		n := min(len(ranges), wire.MaxRanges)
		frames = append(frames, &wire.KeysReq{ID: id, Ranges: ranges[:n:n]})
		ranges = ranges[n:]
		o.asks = append(o.asks, ask{id: id, ranges: n, last: len(ranges) == 0, total: total})
	}
	o.session.send(frames...) // under mu: asks are in the order of the frames
}

// Fence asks the target to end our access through an endpoint and to open another one for ours at addr, which belongs
// to the session from now on. InitiatorHandler.Fenced answers.
func (o *Out) Fence(id uint64, rail uint8, epoch uint32, addr []byte) {
	o.session.send(&wire.Fence{ID: id, Rail: rail, Epoch: epoch, Addr: addr})
}

// Revoked answers one call of InitiatorHandler.Revoke: nothing of ours is in flight on its regions any more. all says that
// we have given up every other key of the target's as well.
func (o *Out) Revoked(id uint64, all bool) {
	o.session.send(&wire.Revoked{ID: id, All: all})
}

// Stage sends a *wire.RingReq or *wire.Copy, which belongs to the session from now on; InitiatorHandler.Staged answers.
func (o *Out) Stage(f wire.Frame) { o.session.send(f) }

// Drain asks the target to say when all notifications below next have arrived. InitiatorHandler.Drained answers.
func (o *Out) Drain(next uint64) { o.session.send(&wire.Drain{Next: next}) }

// Suspect says that the rail with a local address is in trouble: if the session's connection leaves from it, the session
// moves to another path as soon as one answers, and keeps this one when none does. The zero address means any connection.
func (o *Out) Suspect(local netip.Addr, why string) {
	s := o.session
	s.node.cfg.Log.Debug("control connection suspected", "peer", s.peer, "local", local, "reason", why)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == Ready && s.line != nil && s.line.over(local) {
		o.seek(true, localAddr(s.line.conn))
	}
}

// Close ends the session and tells the target why. The handler is not called any more, but for a call that has begun.
func (o *Out) Close(reason string) {
	o.session.end(Closed, fmt.Errorf("%w: %s: %s", ErrClosed, o.session.peer, reason), o.session.bye(reason))
}

// run is the session's goroutine.
func (o *Out) run() {
	n, s := o.session.node, o.session
	defer n.remove(s)
	wait := func() {}
	s.watchProcess(o.to.Boot, o.to.Process)
	w, err := o.connect()
	if err == nil {
		s.mu.Lock()
		o.proved[s.at] = true
		s.mu.Unlock()
	}
	switch {
	case err != nil:
		s.end(Lost, err, nil)
	case s.start(w.Mac, nil):
		n.count.established.Add(1)
		n.cfg.Log.Debug("control session ready", "peer", s.peer, "session", o.id.Load())
		wait = s.loop(func() error {
			return s.guard("ready", func() error { o.handler.Ready(*w); return nil })
		})
	}
	n.finish(s, func(state State, cause error) {
		if state == Lost {
			o.handler.Lost(cause)
		}
	})
	wait()
}

// answers handles a target's frames; it collects the entries of a keys request that took several. Session goroutine only.
type answers struct {
	out     *Out
	entries []wire.KeyEntry
}

func (a *answers) handle(f wire.Frame) error {
	switch f := f.(type) {
	case *wire.Keys:
		return a.keys(f)
	case *wire.Revoke:
		a.out.handler.Revoke(f.ID, f.Regions)
	case *wire.Fenced:
		a.out.handler.Fenced(*f)
	case *wire.Ring, *wire.Copied:
		a.out.handler.Staged(f)
	case *wire.Drained:
		a.out.handler.Drained(f.Next)
	default:
		return a.out.session.unexpected(f)
	}
	return nil
}

func (a *answers) keys(f *wire.Keys) error {
	o := a.out
	o.mu.Lock()
	if len(o.asks) == 0 || o.asks[0].id != f.ID || o.asks[0].ranges != len(f.Entries) {
		o.mu.Unlock()
		return fmt.Errorf("%w: %s: %d keys for request %d, which was not asked for", ErrProtocol, o.session.peer, len(f.Entries), f.ID)
	}
	asked := o.asks[0]
	if o.asks = o.asks[1:]; len(o.asks) == 0 {
		o.asks = nil
	}
	o.mu.Unlock()
	o.session.queue.answered(asked.ranges)
	if a.entries == nil && !asked.last {
		a.entries = make([]wire.KeyEntry, 0, asked.total)
	}
	a.entries = append(a.entries, f.Entries...)
	if asked.last {
		k := wire.Keys{ID: f.ID, Entries: a.entries}
		a.entries = nil
		o.handler.Keys(k)
	}
	return nil
}
