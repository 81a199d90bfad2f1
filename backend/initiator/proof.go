package initiator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"gorail/backend/core"
	"gorail/backend/link"
)

// A peer is connected once a message has gone both ways over a link: the initiator's probe and the target's answer. What the
// control channel says of endpoints proves nothing: a firewall may let its port through alone.

var errUnproved = errors.New("no data connection came about within connect_timeout")

// announce tells that the peer is connected, once it is known of each link whether it works. Under mu.
func (r *Session) announce() {
	if r.connected || !r.failover.Known() {
		return
	}
	r.connected = true
	works := link.Proved(r.links)
	r.s.Log.Info("peer connected", "peer", r.name, "memory", "DRAM", "rails", strings.Join(link.Names(works), ","), "links", len(works), "session", "initiator")
}

// doubt tells of a link that did not come about while others did; it is tried again. Under mu, when it is fenced.
func (r *Session) doubt(l *link.Link, why string) {
	if r.failover.ReportUnproved(&l.Link) {
		r.s.Log.Warn("rail not connected; others carry its work, and it is tried again", "peer", r.name, "rail", l.Rail.Name(), "reason", why, "err", l.Reason())
	}
	r.announce()
}

// awaitProof ends the session when no link is proved in time: transfers would wait for it.
func (c *conn) awaitProof() {
	most := c.r.s.Options.ConnectTimeout
	c.r.mu.RLock()
	left := max(time.Until(c.r.dialed.Add(most)), most/4)
	c.r.mu.RUnlock()
	c.r.s.Life.After(left, c.proofLate)
}

func (c *conn) proofLate() {
	r := c.r
	r.mu.RLock()
	late := c.current() && r.state == ready && !r.failover.AnyProved()
	var why []string
	limit := false
	for _, l := range r.links {
		limit = limit || errors.Is(l.Fault, syscall.EMFILE)
		if l.Up && !slices.Contains(why, l.Reason()) {
			why = append(why, l.Reason())
		}
	}
	r.mu.RUnlock()
	if !late {
		return
	}
	err := fmt.Errorf("%w (%v): %s", errUnproved, r.s.Options.ConnectTimeout, strings.Join(why, "; "))
	if limit {
		err = fmt.Errorf("%w: %w", err, syscall.EMFILE)
	}
	c.GiveUp(err)
}

var stateNames = map[core.LinkState]string{core.LinkUp: "up", core.LinkStopped: "stopped", core.LinkDead: "ended", core.LinkProbing: "not proved"}

// Texts says of each link where it leads and what it does. Implements transfer.Session.
func (r *Session) Texts() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []string
	for _, l := range r.links {
		if l.Up {
			s := l.Core.Stats()
			all = append(all, fmt.Sprintf("%s: %s, %d requests and %d bytes in flight, %d messages and %d transfers queued, %d of %d completions with an error",
				l.Ends(), stateNames[s.State], s.InflightOps, s.InflightBytes, s.QueuedMsgs, s.QueuedParts, s.Errors, s.Completions))
		}
	}
	return strings.Join(all, "; ")
}
