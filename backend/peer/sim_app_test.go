package peer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"gorail/backend/wire"
)

// simApp is the application at both ends. It numbers all that it sends, and writes down what arrives.
type simApp struct {
	*plan
	from, to *Node
	begun    time.Time

	mu    sync.Mutex
	lines []line
	wrong []string // broken promises
	outs  []*simOut
	ins   []*simIn
}

// line is one event of the trace.
type line struct {
	at   time.Time
	text string
}

// simOut is the initiator's side of a session.
type simOut struct {
	*simApp
	out                             *Out
	number                          int
	ready                           bool
	fences, fenced, revoked, wanted uint64 // sent and answered; received
	keys, gotKeys, drains, drained  uint64
	asked, viewed                   uint64
	end                             ending
}

// simIn is the target's side of a session.
type simIn struct {
	in                             *In
	fences, revokes, acked, wanted uint64
	drains, views                  uint64
	end                            ending
}

// ending is how a side of a session ended.
type ending struct {
	at     time.Time
	err    error
	count  int  // calls of Lost or Gone
	closed bool // this side closed it
}

func (a *simApp) note(format string, args ...any) {
	a.lines = append(a.lines, line{time.Now(), fmt.Sprintf(format, args...)})
}

// breaks notes a broken promise. It needs mu.
func (a *simApp) breaks(format string, args ...any) {
	a.wrong = append(a.wrong, fmt.Sprintf("%v: ", time.Since(a.begun))+fmt.Sprintf(format, args...))
}

// expect checks a number that must be the next one.
func (a *simApp) expect(what string, counter *uint64, got uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.note("%s %d", what, got)
	if *counter++; *counter != got {
		a.breaks("%s %d, want %d", what, got, *counter)
		*counter = got
	}
}

// trace is what happened. Events of one instant have no order. Ends come without their time: where two timers fire at one instant, the
// runtime chooses, and the other side may wait for the rest of Linger.
func (a *simApp) trace() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var texts []string
	for _, l := range a.lines {
		if strings.HasSuffix(l.text, " gone") || strings.HasSuffix(l.text, " lost") {
			texts = append(texts, l.text)
			continue
		}
		texts = append(texts, fmt.Sprintf("%12d %s", l.at.Sub(a.begun), l.text))
	}
	slices.Sort(texts)
	return texts
}

// dial begins a session.
func (a *simApp) dial() *simOut {
	blob := a.to.cfg.Identity
	blob.Control = a.to.Addrs()
	o := &simOut{simApp: a, number: len(a.outs)}
	a.outs = append(a.outs, o)
	o.out = a.from.Dial(blob, 0, o)
	return o
}

// session returns the present session, a new one if the last has ended, and the target's side of it if there is one.
func (a *simApp) session() (*simOut, *simIn) {
	if len(a.outs) == 0 || a.outs[len(a.outs)-1].out.State().Over() {
		a.dial()
	}
	o := a.outs[len(a.outs)-1]
	a.mu.Lock()
	defer a.mu.Unlock()
	return o, a.other(o)
}

// other is the target's side of a session. It needs mu.
func (a *simApp) other(o *simOut) *simIn {
	for _, i := range a.ins {
		if i.in.Session() == o.out.Session() {
			return i
		}
	}
	return nil
}

// find needs mu.
func (a *simApp) find(in *In) *simIn {
	for _, i := range a.ins {
		if i.in == in {
			return i
		}
	}
	panic("a session without a Hello")
}

// act does one action.
func (a *simApp) act(do action) {
	o, i := a.session()
	for range do.count {
		switch do.deed {
		case fences:
			o.fences++
			o.out.Fence(o.fences, 1, 1, nil)
		case asksKeys:
			o.keys++
			o.out.Keys(o.keys, make([]wire.Claim, do.count))
		case drains:
			o.drains++
			o.out.Drain(o.drains)
			o.asked++
			o.out.AskSnapshot(o.asked)
		}
		switch {
		case i == nil || i.in.State() != Ready:
		case do.deed == revokes:
			i.revokes++
			i.in.Revoke(i.revokes, nil)
		case do.deed == wantsFence:
			i.wanted++
			i.in.WantFence(1, uint32(i.wanted))
		}
	}
	path := a.paths[do.count%len(a.paths)]
	a.mu.Lock()
	if do.deed == leaves && !o.out.State().Over() {
		o.end.closed, o.end.at = true, time.Now()
	}
	a.mu.Unlock()
	switch {
	case do.deed == suspects:
		o.out.Suspect(path.local.Addr(), "schedule")
	case do.deed == leaves:
		o.out.Close("schedule")
	case i == nil:
	case do.deed == suspected:
		i.in.Suspect(path.addr.Addr(), "schedule")
	case do.deed == evicted:
		i.in.Close("schedule")
	}
}

// The initiator's handler.

func (o *simOut) Offers() ([]wire.EndpointOffer, error) { return nil, nil }

func (o *simOut) Ready(wire.Welcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ready = true
	o.note("out %d ready", o.number)
}

func (o *simOut) Keys(k wire.Keys)        { o.expect(fmt.Sprint("out ", o.number, " keys"), &o.gotKeys, k.ID) }
func (o *simOut) Staged(wire.Frame)       {}
func (o *simOut) Wider([]wire.Rail)       {}
func (o *simOut) Moved([]string)          {}
func (o *simOut) Resumed(_, _ netip.Addr) {}
func (o *simOut) Moves() wire.Moves       { return wire.Moves{} }
func (o *simOut) Snapshot(f wire.Snapshot) {
	o.expect(fmt.Sprint("out ", o.number, " snapshot"), &o.viewed, f.ID)
}
func (o *simOut) Drained(next uint64) {
	o.expect(fmt.Sprint("out ", o.number, " drained"), &o.drained, next)
}
func (o *simOut) Renew(id uint64, regions []uint64) { o.Revoke(id, regions) }

func (o *simOut) Revoke(id uint64, _ []uint64) {
	o.expect(fmt.Sprint("out ", o.number, " revoke"), &o.revoked, id)
	o.out.Revoked(id, true)
}

func (o *simOut) Fenced(f wire.Fenced) {
	if f.ID == 0 {
		o.expect(fmt.Sprint("out ", o.number, " wanted"), &o.wanted, uint64(f.Epoch))
		return
	}
	o.expect(fmt.Sprint("out ", o.number, " fenced"), &o.fenced, f.ID)
}

func (o *simOut) Lost(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.note("out %d lost", o.number)
	o.end.ends(o.simApp, err)
}

// ends notes the end. It needs the application's mu.
func (e *ending) ends(a *simApp, err error) {
	if e.at, e.err = time.Now(), err; e.count > 0 || e.closed && !errors.Is(err, ErrClosed) {
		a.breaks("the end comes again: %v", err)
	}
	e.count++
}

// The target's handler.

func (a *simApp) Hello(in *In, h wire.Hello) (Accept, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.note("in %d hello", h.Session)
	a.ins = append(a.ins, &simIn{in: in})
	return Accept{}, nil
}

func (a *simApp) KeysWanted(_ *In, r []wire.Claim) ([]wire.KeyEntry, bool) {
	return make([]wire.KeyEntry, len(r)), false
}
func (a *simApp) Stage(*In, wire.Frame) error { return nil }

func (a *simApp) Fence(in *In, f wire.Fence) error {
	a.expect(fmt.Sprint("in ", in.Session(), " fence"), &a.side(in).fences, f.ID)
	in.Fenced(wire.Fenced{ID: f.ID})
	return nil
}

func (a *simApp) Revoked(in *In, id uint64, _ bool) {
	a.expect(fmt.Sprint("in ", in.Session(), " revoked"), &a.side(in).acked, id)
}

func (a *simApp) Drain(in *In, next uint64) {
	a.expect(fmt.Sprint("in ", in.Session(), " drain"), &a.side(in).drains, next)
	in.Drained(next)
}

func (a *simApp) Moved(*In, []string)            {}
func (a *simApp) Resumed(_ *In, _, _ netip.Addr) {}

func (a *simApp) Snapshot(in *In, id uint64) {
	a.expect(fmt.Sprint("in ", in.Session(), " snapshot"), &a.side(in).views, id)
	in.Snapshot(&wire.Snapshot{ID: id, State: wire.SnapshotServing})
}

func (a *simApp) Gone(in *In, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.note("in %d gone", in.Session())
	e := &a.find(in).end
	e.closed = errors.Is(err, ErrClosed)
	e.ends(a, err)
}

func (a *simApp) side(in *In) *simIn {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.find(in)
}
