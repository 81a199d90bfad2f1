package peer

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// Out is a session with a target. It is safe for concurrent use, and no method waits. Requests before the session is
// ready are sent as soon as it is ready. After the session's end nothing is sent or answered.
type Out struct {
	*base
	stream  *stream
	to      wire.ConnBlob
	after   uint64
	id      atomic.Uint64 // of the last Hello
	handler InitiatorHandler
	offers  []wire.EndpointOffer // of the handler; requested once, by the session's goroutine
	offered bool
	renewal *renewal // constant
	place   *start   // of the first handshake; for the session's goroutine

	// Guarded by the stream's lock.
	proved    []netip.AddrPort // addresses where the target has answered; few
	control   []string         // where the target listens now
	movedAt   time.Time        // when it last said so
	reconnect *reconnect       // the running reconnect; nil: none
	resumed   bool             // the session has been resumed at least once
	progress  uint64           // frames exchanged when the last reconnect began
	overdue   overdue
	trips     trips
	took      time.Duration // the last handshake, from the connection on

	keysRequests keysRequests
}

func newOut(b *base, to wire.ConnBlob, after uint64, h InitiatorHandler) *Out {
	o := &Out{base: b, to: to, control: to.Control, after: after, handler: h}
	o.stream = newStream(b.env, label(to.Agent, to.Engine), Dialing, (&answers{out: o}).handle, o.findConnection)
	o.stream.w.moves, o.stream.resumed = h.Moves, h.Resumed
	o.renewal = &renewal{s: o.stream, renew: o.renew}
	return o
}

// Peer returns the connection blob that was dialed.
func (o *Out) Peer() wire.ConnBlob { return o.to }

// Session returns the session's number at the target. Each try to connect has a higher number; 0 before the first.
func (o *Out) Session() uint64 { return o.id.Load() }

// Took is how long the target took for its part of the last handshake, which counts ours, too.
func (o *Out) Took() (d time.Duration) {
	o.stream.Do(func(lockedStream) { d = o.took })
	return d
}

// State returns the session's state.
func (o *Out) State() State { return o.stream.State() }

// LastHeard is when the peer last sent anything on the control channel; zero: it was not reached yet.
func (o *Out) LastHeard() time.Time { return o.stream.LastHeard() }

// Remote returns the remote address of the connection, the zero Addr without a connection.
func (o *Out) Remote() netip.Addr { return o.stream.Remote() }

// Packets says which packets of the connection do not arrive: see Stream.
func (o *Out) Packets() (lost, counters string) { return o.stream.Packets() }

// LinkSecret derives the secret of a link, from Ready on. The caller wipes it.
func (o *Out) LinkSecret(n trust.LinkName) *trust.LinkSecret { return o.stream.LinkSecret(n) }

// KeySalt is the salt of the session's keys of regions, from Ready on. It stays the same when the session is resumed.
func (o *Out) KeySalt() [16]byte { return o.stream.KeySalt() }

// String returns the target's name for errors and logs.
func (o *Out) String() string { return o.stream.Peer() }

// Keys asks for the keys of any number of ranges. One InitiatorHandler.Keys answers. The session owns the ranges from
// now on.
func (o *Out) Keys(id uint64, ranges []wire.Claim) {
	o.keysRequests.send(o.stream, id, ranges)
}

// Fence asks the target to close our access through an endpoint, and to open another endpoint for ours at addr. The
// session owns addr from now on. begin, if given, makes it a new link. InitiatorHandler.Fenced answers.
func (o *Out) Fence(id uint64, rail uint8, epoch uint32, addr []byte, begin ...wire.Pair) {
	o.stream.Send(&wire.Fence{ID: id, Rail: rail, Epoch: epoch, Addr: addr, New: begin})
}

// Revoked answers one call of InitiatorHandler.Revoke: nothing of ours is in flight on its regions any more. all says
// that we have also dropped all other keys of the target.
func (o *Out) Revoked(id uint64, all bool) {
	o.stream.Send(&wire.Revoked{ID: id, All: all})
}

// Stage sends a *wire.RingReq, *wire.Copy, *wire.PackedCopy or *wire.HandlesReq. The session owns the frame from now on. InitiatorHandler.Staged answers.
func (o *Out) Stage(f wire.Frame) { o.stream.Send(f) }

// Drain asks the target to report when all notifications below next have arrived. InitiatorHandler.Drained answers.
func (o *Out) Drain(next uint64) { o.stream.Send(&wire.Drain{Next: next}) }

// AskSnapshot asks the target for its view of the session. InitiatorHandler.Snapshot answers, unless the session ends.
func (o *Out) AskSnapshot(id uint64) { o.stream.Send(&wire.SnapshotReq{ID: id}) }

// Done is closed when the session ends.
func (o *Out) Done() <-chan struct{} { return o.stream.Context().Done() }

// Suspect reports a failing rail, by its local address. If the session's connection leaves from that address, the
// session moves to another path as soon as one answers. Until then it keeps this connection. The zero address matches
// any connection.
func (o *Out) Suspect(local netip.Addr, why string) {
	o.cfg.Log.Debug("control connection suspected", "peer", o.String(), "local", local, "reason", why)
	o.stream.Suspect(local)
}

// Busy says that something is outstanding with the target although no frame is: its silence must be noticed soon.
func (o *Out) Busy() { o.stream.Busy() }

// movedEvery bounds how often a target may have us look for it elsewhere while we have a connection to it.
const movedEvery = time.Second

// Moved gives the session other control addresses of the target. If they are new, the session looks for a connection to them, and keeps the one in
// use until the target has answered.
func (o *Out) Moved(control []string) {
	moved := false
	o.stream.Do(func(lockedStream) {
		if moved = !slices.Equal(o.control, control); !moved {
			return
		}
		o.control = slices.Clone(control)
		if o.reconnect != nil {
			o.reconnect.again()
		}
		moved = time.Since(o.movedAt) > movedEvery
		o.movedAt = time.Now()
	})
	if moved {
		o.stream.Suspect(netip.Addr{})
	}
}

// addrs are the target's control addresses that may be reached from here.
func (o *Out) addrs() (list []netip.AddrPort) {
	o.stream.Do(func(lockedStream) {
		to := o.to
		to.Control = o.control
		list = reachable(&o.cfg.Identity, &to)
	})
	return list
}

// renew looks for another connection, over any address, to prove the identities of both ends again. The connection in
// use stays until the target has answered.
func (o *Out) renew() {
	o.stream.Do(func(l lockedStream) {
		if l.State() != Ready {
			return
		}
		o.replace()
	})
}

// Close ends the session and sends the reason to the target. A handler call that has begun may continue; no other
// call follows.
func (o *Out) Close(reason string) {
	o.stream.End(Closed, fmt.Errorf("%w: %s: %s", ErrClosed, o.stream.Peer(), reason), o.stream.Bye(reason))
}

// run is the session's goroutine.
func (o *Out) run() {
	wait := func() {}
	if w := o.establish(); w != nil {
		defer o.renewals.begin(o.renewal, w.proved)()
		wait = o.stream.Run(func() error {
			return o.env.Guard(o.String(), "ready", func() error { o.handler.Ready(*w.Welcome); return nil })
		})
	}
	o.end()
	wait()
}

// establish connects, and starts the stream; nil: it is over.
func (o *Out) establish() *welcomed {
	s := o.stream
	o.watchProcess(s, o.to.Boot, o.to.Process)
	o.place = o.starts.take(s.Context())
	w, err := o.connect()
	o.place.done()
	if err != nil {
		s.End(Lost, err, nil)
		return nil
	}
	s.Do(func(l lockedStream) { o.proves(l.At()) })
	if !s.Start(w.secret, nil) {
		return nil
	}
	o.count.established.Add(1)
	o.cfg.Log.Debug("control session ready", "peer", o.String(), "session", o.id.Load())
	return &w
}

// proves notes an address where the target has answered. It needs the stream's lock.
func (o *Out) proves(a netip.AddrPort) {
	if !slices.Contains(o.proved, a) {
		o.proved = append(o.proved, a)
	}
}

func (o *Out) end() {
	o.finish(o.stream, func(state State, cause error) {
		if state == Lost {
			o.handler.Lost(cause)
		}
	})
}

// answers handles a target's frames. It collects the entries of a keys request that took several frames. Only the
// session's goroutine uses it.
type answers struct {
	out     *Out
	entries []wire.KeyEntry
}

// handle is the stream's Handle.
func (a *answers) handle(f wire.Frame) error {
	switch f := f.(type) {
	case *wire.Keys:
		return a.keys(f)
	case *wire.Revoke:
		if f.Renewed {
			a.out.handler.Renew(f.ID, f.Regions)
		} else {
			a.out.handler.Revoke(f.ID, f.Regions)
		}
	case *wire.Fenced:
		a.out.handler.Fenced(*f)
	case *wire.Ring, *wire.Copied, *wire.PackedCopied, *wire.Handles:
		a.out.handler.Staged(f)
	case *wire.Drained:
		a.out.handler.Drained(f.Next)
	case *wire.Snapshot:
		a.out.handler.Snapshot(*f)
	case *wire.Wider:
		a.out.handler.Wider(f.Rails)
	case *wire.Moved:
		a.out.Moved(f.Control)
		a.out.handler.Moved(f.Control)
	default:
		return a.out.stream.Unexpected(f)
	}
	return nil
}

func (a *answers) keys(f *wire.Keys) error {
	o := a.out
	request, ok := o.keysRequests.answered(f)
	if !ok {
		return fmt.Errorf("%w: %s: %d keys for request %d, which is not outstanding", ErrProtocol, o.stream.Peer(), len(f.Entries), f.ID)
	}
	o.stream.Answered(request.ranges)
	if a.entries == nil && !request.last {
		a.entries = make([]wire.KeyEntry, 0, request.total)
	}
	a.entries = append(a.entries, f.Entries...)
	if request.last {
		k := wire.Keys{ID: f.ID, Entries: a.entries, Stays: f.Stays}
		a.entries = nil
		o.handler.Keys(k)
	}
	return nil
}
