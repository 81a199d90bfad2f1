package target

import (
	"fmt"
	"log/slog"
	"strings"
	"syscall"

	"gorail/backend/failover"
	"gorail/backend/limits"
	"gorail/backend/link"
	"gorail/backend/provider"
	"gorail/backend/rlimit"
)

// LinkEvent implements link.Owner. Its work runs outside of the serial events: Fence holds mu while it waits for those.
func (t *Session) LinkEvent(l *link.Link, epoch uint64, errno int32) {
	if errno == 0 {
		go t.firstMessage(l, epoch)
		return
	}
	cause := rlimit.Advise(syscall.Errno(errno))
	if rlimit.Exhausted(cause) {
		t.s.warnOf(t.in, "no connection for a peer on a rail", "rail", l.Rail.Name(), "err", cause)
	}
	l.Log(t.s.Log, slog.LevelInfo, "link error", "peer", t.in.Agent(), "rail", l.Rail.Name(), "errno", errno, "err", cause, "session", "target")
	go t.failed(l, epoch)
}

// PeerName implements link.Owner.
func (t *Session) PeerName() string { return t.in.Agent() }

// Posting implements link.Owner. A target posts no transfers.
func (*Session) Posting() bool { return false }

// GPUBusy implements link.Owner. The GPU copies between our own memory and a bounce buffer: a deregistration reports it.
func (t *Session) GPUBusy(*provider.GPUBusy) {}

// firstMessage handles the first message of a peer over a link.
func (t *Session) firstMessage(l *link.Link, epoch uint64) {
	if !t.s.Life.Enter() {
		return
	}
	defer t.s.Life.Leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone || t.frozen || !l.Up || epoch != uint64(l.Epoch) {
		return
	}
	l.Prove()
	switch {
	case len(link.Proved(t.links)) == len(link.InUse(t.links)):
		t.announce()
	case !t.log.waits:
		t.log.waits = true
		t.s.Life.After(2*failover.ProbeTime, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.announce()
		})
	}
}

// announce logs once that the peer is connected. Under mu.
func (t *Session) announce() {
	if t.log.known || t.gone {
		return
	}
	t.log.known = true
	works := link.Proved(t.links)
	t.s.Log.Info("peer connected", "peer", t.in.Agent(), "engine", t.in.Engine().String(), "memory", "DRAM", "rails", strings.Join(link.Names(works), ","), "links", len(works), "session", "target")
}

// openings is limits.tcp_openings.
func (s *Sessions) openings() uint64 { return s.Links.Rails.Limited()[limits.TCPOpenings] }

// proofLate logs what this side knows of a peer whose data connections did not come in.
func (t *Session) proofLate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone || t.log.missed || len(link.Proved(t.links)) > 0 {
		return
	}
	t.log.missed = true
	var why []string
	near := true
	for _, l := range t.links {
		if l.Up {
			why = append(why, l.Ends())
			near = near && l.OneHost()
		}
	}
	hint := "a firewall? Option data_port sets the ports that the firewall must admit"
	if near && len(why) > 0 {
		hint = link.BusyHost
	}
	if n := t.s.openings() - t.log.opened; n > 0 {
		hint = fmt.Sprintf("unauthenticated connections flood the ports of option data_port: limits.tcp_openings ended %d of them meanwhile; keep their sources off by a firewall", n)
	}
	t.s.warnOf(t.in, "no data connection of a peer has come in; "+hint,
		"rails", strings.Join(why, ", "), "connect_timeout", t.s.Options.ConnectTimeout)
}
