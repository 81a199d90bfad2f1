// Package link is the links of sessions: an endpoint on one rail, and what the core posts over it. A session owns its links and guards them with its
// own lock; this package opens, starts, quiesces and frees them, and finds the one that an event is of.
package link

import (
	"fmt"
	"log/slog"
	"slices"

	"gorail/backend/core"
	"gorail/backend/failover"
	"gorail/backend/provider"
	"gorail/backend/rails"
)

// Link is a session's endpoint on one rail, on either side; a pair of rails may have several. Guarded by its session's lock.
type Link struct {
	failover.Link

	ID     uint64
	Num    int // its place among the Hello's offers: both sides know it by that
	Rail   *rails.Rail
	Peer   int               // the peer's rail
	PeerID uint64            // the peer's number of the link
	EP     provider.Endpoint // nil: it has none
	Core   core.Link         // there if Up

	Late  bool // it came up within the session: the peer may have registered memory on its rail since
	Again bool // the peer's rail came up while the link was being started

	Where string // both ends of it, for messages; "": the fabric has no such
	Fault error  // the last one of an endpoint, while not proved

	owner Owner
	meter *meter
}

// Owner is the session that a link is of.
type Owner interface {
	// LinkEvent says that a message has come in over a new link (errno 0), or that the link has stopped with an error. It must not wait, and
	// takes no lock.
	LinkEvent(l *Link, epoch uint64, errno int32)
}

// Shared says that its endpoint serves other peers, too: it is not closed for a fence.
func (l *Link) Shared() bool { return l.Rail.Can.SharedEndpoint }

// Level is that of what is said of the link: debug once it has been told that nothing comes over it.
func (l *Link) Level() slog.Level {
	if l.Told {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// Drained says that nothing of the link's is posted any more.
func (l *Link) Drained() bool { return !l.Up || l.Core.Stats().InflightOps == 0 }

// Count is what failover asks of a link that is up.
func (l *Link) Count() failover.Count {
	s := l.Core.Stats()
	return failover.Count{Completions: s.Completions, Errors: s.Errors, InFlight: uint64(s.InflightOps)}
}

// Rebind lets the link go on with the endpoint that it has now.
func (l *Link) Rebind(proof core.Proof, probe bool) error {
	return l.Core.Rebind(l.EP.Core(), l.Epoch, proof, probe)
}

// Renew opens another endpoint for a quiesced link.
func (l *Link) Renew() error {
	l.Epoch++
	ep, err := l.Rail.OpenEndpoint()
	if err != nil {
		return err
	}
	l.EP = ep
	return nil
}

// NoteEnds keeps both ends of a link for messages, by address and port where its endpoint has them.
func (l *Link) NoteEnds() {
	if filter, ok := l.EP.(provider.AcceptFilter); ok {
		if own, peer := filter.Ends(); own != "" && peer != "" {
			l.Where = fmt.Sprintf(" (%s to %s)", own, peer)
		}
	}
}

// Ends names the link for messages.
func (l *Link) Ends() string { return l.Rail.Name() + l.Where }

// Prove notes that messages go both ways; nobody else is let in.
func (l *Link) Prove() {
	l.Link.Prove()
	l.ShutFilter()
}

// ShutFilter lets nobody else in, for messages go both ways.
func (l *Link) ShutFilter() {
	l.Fault = nil
	if filter, ok := l.EP.(provider.AcceptFilter); ok {
		filter.Shut()
	}
}

// Reason is why a link is not proved, as far as is known, and what may help.
func (l *Link) Reason() string {
	why := "no answer"
	if l.Fault != nil {
		why = l.Fault.Error()
	}
	if l.Where == "" {
		return l.Ends() + ": " + why
	}
	return l.Ends() + ": " + why + "; a firewall? Option data_port of the peer fixes the ports that it has to let through; behind translated addresses see option data_sources"
}

// Fenced and Stalled count for the link and its rail.
func (l *Link) Fenced() {
	l.meter.fences.Add(1)
	l.Rail.Fences.Add(1)
}

func (l *Link) Stalled() {
	l.meter.stalls.Add(1)
	l.Rail.Stalls.Add(1)
}

// InUse are the links that have an endpoint, or had one.
func InUse(links []*Link) []*Link {
	return slices.DeleteFunc(slices.Clone(links), func(l *Link) bool { return !l.Up && l.EP == nil })
}

// Proved are the links that are.
func Proved(links []*Link) []*Link {
	return slices.DeleteFunc(slices.Clone(links), func(l *Link) bool { return !l.Proved })
}

// Names are those of the links' rails, each once.
func Names(links []*Link) (out []string) {
	for _, l := range links {
		if name := l.Rail.Name(); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
