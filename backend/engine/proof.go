package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"gorail/backend/core"
	"gorail/backend/provider"
)

// A peer is connected once a message has gone both ways over a link: the initiator's probe and the target's answer. What the
// control channel says of endpoints proves nothing: a firewall may let its port through alone.

var errUnproved = errors.New("no data connection came about within connect_timeout")

// reachFor names the peer's endpoint, which may come from these addresses as well.
func (e *Engine) reachFor(ep provider.Endpoint, addr []byte, from []netip.Addr) error {
	door, ok := ep.(provider.Door)
	if ok {
		door.Admit(from)
	}
	err := ep.Connect(addr)
	switch {
	case !ok:
	case err != nil:
		door.Shut()
	default:
		e.after(max(e.opt.ConnectTimeout, mostUnproved+2*probeTime), door.Shut) // the peer's link may rest first
	}
	return err
}

// noteEnds keeps both ends of a link for messages, by address and port where its endpoint has them. Under its owner's mu.
func (l *link) noteEnds() {
	if door, ok := l.ep.(provider.Door); ok {
		if own, peer := door.Ends(); own != "" && peer != "" {
			l.where = fmt.Sprintf(" (%s to %s)", own, peer)
		}
	}
}

// ends names the link for messages.
func (l *link) ends() string { return l.rail.Name() + l.where }

// prove notes that messages go both ways; nobody else is let in.
func (l *link) prove() {
	l.proved, l.told, l.fault = true, false, nil
	if door, ok := l.ep.(provider.Door); ok {
		door.Shut()
	}
}

// proved are the links that are.
func proved(links []*link) []*link {
	return slices.DeleteFunc(slices.Clone(links), func(l *link) bool { return !l.proved })
}

// reason is why a link is not proved, as far as is known, and what may help.
func (l *link) reason() string {
	why := "no answer"
	if l.fault != nil {
		why = l.fault.Error()
	}
	if l.where == "" {
		return l.ends() + ": " + why
	}
	return l.ends() + ": " + why + "; a firewall? Option data_port of the peer fixes the ports that it has to let through; behind translated addresses see option data_sources"
}

// announce tells that the peer is connected, once it is known of each link whether it works. Under r.mu.
func (r *remote) announce() {
	works := proved(r.links)
	if r.connected || len(works) == 0 || slices.ContainsFunc(r.links, func(l *link) bool { return !l.proved && l.phase == probing && l.epoch == 0 }) {
		return
	}
	r.connected = true
	r.e.log.Info("peer connected", "peer", r.name, "memory", "DRAM", "rails", strings.Join(names(works), ","), "links", len(works), "session", "initiator")
}

// doubt tells of a link that did not come about while others did; it is tried again. Under r.mu, when it is fenced.
func (r *remote) doubt(l *link, why string) {
	if !l.proved && !l.told && r.others(l) {
		l.told = true
		r.e.log.Warn("rail not connected; others carry its work, and it is tried again", "peer", r.name, "rail", l.rail.Name(), "reason", why, "err", l.reason())
	}
	r.announce()
}

// awaitProof ends the session when no link is proved in time: transfers would wait for it.
func (h initiatorHandler) awaitProof() {
	most := h.r.e.opt.ConnectTimeout
	h.r.mu.RLock()
	left := max(time.Until(h.r.dialed.Add(most)), most/4)
	h.r.mu.RUnlock()
	h.r.e.after(left, h.proofLate)
}

func (h initiatorHandler) proofLate() {
	r := h.r
	r.mu.RLock()
	late := h.current() && r.state == ready && len(proved(r.links)) == 0
	var why []string
	limit := false
	for _, l := range r.links {
		limit = limit || errors.Is(l.fault, syscall.EMFILE)
		if l.up && !slices.Contains(why, l.reason()) {
			why = append(why, l.reason())
		}
	}
	r.mu.RUnlock()
	if !late {
		return
	}
	err := fmt.Errorf("%w (%v): %s", errUnproved, r.e.opt.ConnectTimeout, strings.Join(why, "; "))
	if limit {
		err = fmt.Errorf("%w: %w", err, syscall.EMFILE)
	}
	h.giveUp(err)
}

// from are addresses that a peer's connections may come from, besides those of its endpoints.
func (t *target) from() []netip.Addr { return []netip.Addr{t.in.Remote()} }

// heard: a peer's first message has come in over a link.
func (t *target) heard(l *link, epoch uint64) {
	if !t.e.enter() {
		return
	}
	defer t.e.leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone || t.frozen || !l.up || epoch != uint64(l.epoch) {
		return
	}
	l.prove()
	switch {
	case len(proved(t.links)) == len(inUse(t.links)):
		t.announce()
	case !t.waits:
		t.waits = true
		t.e.after(2*probeTime, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.announce()
		})
	}
}

// announce tells that the peer is connected, once. Under mu.
func (t *target) announce() {
	if t.known || t.gone {
		return
	}
	t.known = true
	works := proved(t.links)
	t.e.log.Info("peer connected", "peer", t.in.Agent(), "memory", "DRAM", "rails", strings.Join(names(works), ","), "links", len(works), "session", "target")
}

// proofLate tells what this side can know of a peer that did not get through.
func (t *target) proofLate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone || t.missed || len(proved(t.links)) > 0 {
		return
	}
	t.missed = true
	var why []string
	for _, l := range t.links {
		if l.up {
			why = append(why, l.ends())
		}
	}
	t.e.log.Warn("no data connection of a peer has come in; a firewall? Option data_port fixes the ports that it has to let through",
		"peer", t.in.Agent(), "rails", strings.Join(why, ", "), "connect_timeout", t.e.opt.ConnectTimeout)
}

var phaseNames = map[core.LinkState]string{core.LinkUp: "up", core.LinkStopped: "stopped", core.LinkDead: "ended", core.LinkProbing: "not proved"}

// linkTexts says of each link where it leads and what it does.
func (r *remote) linkTexts() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []string
	for _, l := range r.links {
		if l.up {
			s := l.l.Stats()
			all = append(all, fmt.Sprintf("%s: %s, %d requests and %d bytes in flight, %d messages and %d transfers queued, %d of %d completions with an error",
				l.ends(), phaseNames[s.State], s.InflightOps, s.InflightBytes, s.QueuedMsgs, s.QueuedParts, s.Errors, s.Completions))
		}
	}
	return strings.Join(all, "; ")
}
