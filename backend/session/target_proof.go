package session

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"syscall"

	"gorail/backend/host"
	"gorail/backend/limits"
	"gorail/backend/peer"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// linkEvent handles an event of a link: see Set.Event. Its work runs outside of the serial events: Fence holds mu while it waits for those.
func (t *Target) linkEvent(l *Link, epoch uint64, errno int32) {
	if errno == 0 {
		go t.firstMessage(l, epoch)
		return
	}
	cause := host.Advise(syscall.Errno(errno))
	if host.Exhausted(cause) {
		t.s.warnOf(t.in, "no connection for a peer on a rail", "rail", l.Rail.Name(), "err", cause)
	}
	l.Log(t.s.Log, slog.LevelInfo, "link error", "peer", t.in.Agent(), "rail", l.Rail.Name(), "errno", errno, "err", cause, "session", "target")
	go t.failed(l, epoch)
}

// firstMessage handles the first message of a peer over a link.
func (t *Target) firstMessage(l *Link, epoch uint64) {
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
	case len(Proved(t.links)) == len(InUse(t.links)):
		t.announce()
	case !t.log.waits:
		t.log.waits = true
		t.s.Life.After(2*ProbeTime, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.announce()
		})
	}
}

// announce logs once that the peer is connected. Under mu.
func (t *Target) announce() {
	if t.log.known || t.gone {
		return
	}
	t.log.known = true
	works := Proved(t.links)
	t.s.Log.Info("peer connected", "peer", t.in.Agent(), "engine", t.in.Engine().String(), "memory", "DRAM", "rails", strings.Join(Names(works), ","), "links", len(works), "session", "target")
}

// openings is limits.tcp_openings.
func (s *Targets) openings() uint64 { return s.Links.Rails.Limited()[limits.TCPOpenings] }

// proofLate logs what this side knows of a peer whose data connections did not come in.
func (t *Target) proofLate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone || t.log.missed || len(Proved(t.links)) > 0 {
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
		hint = BusyHost
	}
	if n := t.s.openings() - t.log.opened; n > 0 {
		hint = fmt.Sprintf("unauthenticated connections flood the ports of option data_port: limits.tcp_openings ended %d of them meanwhile; keep their sources off by a firewall", n)
	}
	t.s.warnOf(t.in, "no data connection of a peer has come in; "+hint,
		"rails", strings.Join(why, ", "), "connect_timeout", t.s.Options.ConnectTimeout)
}

// RailsMoved handles rails of ours that have another address since their interface has lost the old one: initiators are asked to fence all links
// over them, and get the new address with the answer.
func (s *Targets) RailsMoved(over []*rails.Rail, was netip.Addr, why string) {
	for _, t := range s.All() {
		t.in.Suspect(was, why)
		for _, r := range over {
			go t.want(r, func(l *Link) bool { return !l.Shared() })
		}
	}
}

// Moved implements peer.TargetHandler.
func (s *Targets) Moved(in *peer.In, control []string) {
	if s.Of(in) != nil {
		s.TargetConfig.Moved(in.Engine(), control)
	}
}

// Whereabouts returns the control addresses that an engine has told us in a session that we serve; nil: none.
func (s *Targets) Whereabouts(engine wire.EngineID) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, t := range s.byEngine[engine] {
		if at := t.in.Control(); at != nil {
			return at
		}
	}
	return nil
}
