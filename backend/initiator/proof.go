package initiator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/link"
)

// A peer is connected after a message has gone both ways over a link: the initiator's probe and the target's answer. The
// control channel alone proves nothing, because a firewall may admit only its port.

var errUnproved = errors.New("no data connection was established within connect_timeout")

// announce logs that the peer is connected, once every link's first probe has a result. Under mu.
func (r *Session) announce() {
	if r.connected || !r.failover.Known() {
		return
	}
	r.connected = true
	works := link.Proved(r.links)
	now := r.pathText()
	r.path = pathLog{logged: now, seen: now, waits: r.path.waits}
	r.s.Log.Info("peer connected", "peer", r.name, "engine", r.blob.Engine.String(), "memory", "DRAM", "rails", strings.Join(link.Names(works), ","), "links", len(works),
		"path", now, "session", "initiator")
}

// logUnproved logs a link that was not established while others were. The link is retried. Under mu, when the link is fenced.
func (r *Session) logUnproved(l *link.Link, why string) {
	if r.failover.ReportUnproved(&l.Link) {
		level := slog.LevelWarn
		if l.OneHost() { // nothing is to be done
			level = slog.LevelInfo
		}
		r.s.Log.Log(context.Background(), level, "rail not connected; other rails carry its work, and the link is retried", "peer", r.name, "rail", l.Rail.Name(), "reason", why, "err", l.Reason(),
			errcode.Key, errcode.RailNotConnected)
	}
	r.announce()
}

// awaitProof ends the session if no link is proved in time: transfers would wait for a link.
func (c *conn) awaitProof() {
	most := c.r.s.Options.ConnectTimeout
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if !c.current() || c.r.state != ready {
		return
	}
	left := max(time.Until(c.r.dialed.Add(most)), most/4)
	c.forget = c.r.s.Life.Later(left, c.proofLate) // canceled by down: the timer would keep a session that has ended, with its TLS state
}

func (c *conn) proofLate() {
	r := c.r
	r.mu.RLock()
	late := c.current() && r.state == ready && !r.failover.AnyProved()
	var why []string
	for _, l := range r.links {
		if l.Up && !slices.Contains(why, l.Reason()) {
			why = append(why, l.Reason())
		}
	}
	r.mu.RUnlock()
	if !late {
		return
	}
	c.GiveUp(fmt.Errorf("%w (%v): %s", errUnproved, r.s.Options.ConnectTimeout, strings.Join(why, "; ")))
}
