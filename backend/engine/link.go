package engine

import (
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// phase is where a link stands. Targets' links only ever work.
//
//	probing -> working -> fencing -> working            when it is the only one
//	                      fencing -> resting -> probing when others work
//
// Where peers share an endpoint nothing can be fenced: draining takes the place of fencing.
type phase int

const (
	working  phase = iota // it posts
	fencing               // its endpoint is closed and the target is asked to close its own
	draining              // it has stopped, and what it has posted ends by itself
	resting               // fenced; its work is with others; it is tried again after a pause
	probing               // nothing but a probe goes out
)

// link is a session's endpoint on one rail, on either side; a pair of rails may have several. Guarded by its owner's mu.
type link struct {
	id     uint64
	num    int // its place among the Hello's offers: both sides know it by that
	rail   *rails.Rail
	peer   int // the peer's rail
	ep     provider.Endpoint
	l      core.Link
	up     bool   // l is there
	peerID uint64 // the peer's number of the link
	late   bool   // it came up within the session: the peer may have registered memory on its rail since
	again  bool   // the peer's rail came up while the link was being started
	epoch  uint32 // grows with every endpoint
	phase  phase
	since  time.Time // of the phase
	good   uint64    // completions without error at the last failure
	pause  time.Duration
	seen   uint64    // completions at the sweeper's last look
	moved  time.Time // when it made progress last, or had nothing to do
	remote *remote
	target *target
	meter  *meter

	proved bool   // messages have gone both ways since the session began; a target's: one has come in
	told   bool   // the log has it that this is not so
	where  string // both ends of it, for messages; "": the fabric has no such
	fault  error  // the last one of an endpoint, while not proved
}

func (l *link) enter(p phase) { l.phase, l.since = p, time.Now() }

// restLonger doubles the pause before the next try of a link that others stand in for.
func (l *link) restLonger() {
	most := mostRest
	if l.told {
		most = mostUnproved
	}
	l.pause = min(max(2*l.pause, firstRest), most)
}

// level is that of what is said of the link: debug once it has been told that nothing comes over it.
func (l *link) level() slog.Level {
	if l.told {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// rebind lets the link go on with the endpoint that it has now.
func (l *link) rebind(proof core.Proof, probe bool) error {
	return l.l.Rebind(l.ep.Core(), l.epoch, proof, probe)
}

// openLink opens an endpoint; the core's link follows when the peer's address is known. With an error the link is there without one, for
// when the rail's device comes up.
func (e *Engine) openLink(num, railIdx, peerRail int) (l *link, err error) {
	r := e.rails[railIdx]
	l = &link{id: e.ids.Add(1)<<32 | uint64(rand.Uint32()), num: num, rail: r, peer: peerRail, meter: &meter{}}
	if l.ep, err = r.OpenEndpoint(); err != nil {
		l.ep = nil
		l.enter(resting)
	}
	return l, err
}

// connect names the peer's endpoint and starts the link. from are addresses of the peer's.
func (e *Engine) connect(l *link, s core.Session, o wire.EndpointOffer, from []netip.Addr, role core.Role, probe bool) error {
	if err := e.reachFor(l.ep, o.Addr, from); err != nil {
		return err
	}
	return e.attach(l, s, o.ID, role, probe)
}

// attach starts a link whose endpoint is connected.
func (e *Engine) attach(l *link, s core.Session, peerID uint64, role core.Role, probe bool) error {
	l.noteEnds()
	slot := l.peer
	if role == core.Target {
		slot = 0 // a target uses no keys of the peer's
	}
	e.linksMu.Lock()
	e.links[l.id] = l
	e.linksMu.Unlock()
	fl, err := s.NewLink(l.rail.Index, slot, l.ep.Core(), l.id, peerID, role, probe)
	l.l, l.up = fl, fl.Exists()
	l.meter.begin(fl)
	return err // drop closes the endpoint, then the link
}

// quiesce ends all access through the link's endpoint: on return the library touches no local buffer for it, and
// nobody reaches our memory through it. A link of a shared endpoint only stops. An error: a stopped process of this host may still make a copy.
func (e *Engine) quiesce(l *link) (err error) {
	if l.up {
		l.l.Stop()
	}
	if l.shared() {
		return nil // it must drain first: see drop and fence
	}
	if l.ep != nil {
		if err = l.ep.Close(); err != nil {
			e.log.Warn("closing an endpoint", "rail", l.rail.Name(), "err", err)
		}
		l.ep = nil
	}
	if l.up {
		l.l.Reap()
	}
	return err
}

func (l *link) shared() bool { return l.rail.Can.SharedEndpoint }

// drained says that nothing of the link's is posted any more.
func (l *link) drained() bool { return !l.up || l.l.Stats().InflightOps == 0 }

// stillPosted says that something of theirs is, which only links of shared endpoints can say once they have stopped.
func stillPosted(links []*link) bool {
	return slices.ContainsFunc(links, func(l *link) bool { return !l.drained() })
}

// inUse are the links that have an endpoint, or had one.
func inUse(links []*link) []*link {
	return slices.DeleteFunc(slices.Clone(links), func(l *link) bool { return !l.up && l.ep == nil })
}

// names are those of the links' rails, each once.
func names(links []*link) (out []string) {
	for _, l := range links {
		if name := l.rail.Name(); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// drop ends a session's links for good; what is queued on them ends with the status. Links of shared endpoints drain first, and the peer
// answers a FENCE for those on which something failed, behind the call: until then their transfers are in progress, for memory is in use.
// The channel is closed when all is quiet; nil: it is already.
func (e *Engine) drop(links []*link, s core.Session, st int32, p *parting) <-chan struct{} {
	for _, l := range links {
		e.quiesce(l)
		e.linksMu.Lock()
		delete(e.links, l.id)
		e.linksMu.Unlock()
	}
	p.ask(links)
	if stillPosted(links) || p.waits() {
		drained := make(chan struct{})
		e.late.Go(func() {
			e.dropLate(links, s, st, p)
			close(drained)
		})
		return drained
	}
	e.free(links, s, st)
	return nil
}

// dropLate waits until the links are quiet; when the engine closes, not for long.
func (e *Engine) dropLate(links []*link, s core.Session, st int32, p *parting) {
	const atClose = 2 * time.Second
	var closing time.Time
	for ; stillPosted(links) || p.waits(); time.Sleep(time.Millisecond) {
		if closing.IsZero() && e.closed.Load() {
			closing = time.Now()
		}
		if !closing.IsZero() && time.Since(closing) > atClose {
			e.log.Error("operations of a peer that is gone have not completed; their memory may still be touched")
			break
		}
	}
	e.free(links, s, st)
}

// free ends links that are quiet. All of them end before the first is let go: a transfer's last part may still hand its
// notification to another's.
func (e *Engine) free(links []*link, s core.Session, st int32) {
	for _, l := range links {
		if !l.shared() {
			continue
		}
		if l.up {
			l.l.Reap()
		}
		if l.ep != nil {
			if err := l.ep.Close(); err != nil {
				e.log.Warn("leaving an endpoint", "rail", l.rail.Name(), "err", err)
			}
			l.ep = nil
		}
	}
	for _, l := range links {
		if l.up {
			l.l.Fail(st)
		}
	}
	for _, l := range links {
		if l.up {
			l.meter.end()
			l.l.Free()
			l.up = false
		}
	}
	s.Free()
}

// renew opens another endpoint for a quiesced link.
func (e *Engine) renew(l *link) error {
	l.epoch++
	ep, err := l.rail.OpenEndpoint()
	if err != nil {
		return err
	}
	l.ep = ep
	return nil
}
