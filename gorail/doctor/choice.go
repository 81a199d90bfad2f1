package doctor

import (
	"fmt"
	"slices"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/topo"
)

// choice says which devices an engine takes, and creates one.
func (s *checker) choice() {
	if s.Try.Rails != nil {
		s.patterns()
		s.chosen()
	}
	if s.Try.Engine != nil {
		switch warnings, err := s.Try.Engine(s.opt); {
		case err != nil:
			s.Fail("engine", "createBackend fails: "+err.Error(), "do what the first FAIL above says, else what this text says")
		default:
			for _, w := range warnings {
				s.Warn("engine", w, "do what the text says, or ignore it if it is intended")
			}
			s.Pass("engine", "an engine was created and closed")
		}
	}
	if s.agent != nil {
		if got := <-s.agent; got.err != nil {
			s.Fail("nixl", "a NIXL agent cannot create the backend GORAIL: "+got.err.Error(), "do what the first FAIL above says, else what this text says")
		} else {
			s.Pass("nixl", "an agent of %s created the backend GORAIL", got.text)
		}
	}
}

// startAgent starts a NIXL agent beside the other checks, if there is a wheel.
func (s *checker) startAgent() {
	if s.Try.NIXL == nil || s.Software.Plugin.Err != "" || s.Software.Wheels.Takes == "" {
		return
	}
	s.agent = make(chan agentResult, 1)
	go func() {
		text, err := s.Try.NIXL(s.Params)
		s.agent <- agentResult{text, err}
	}()
}

// patterns finds patterns of option devices that match nothing.
func (s *checker) patterns() {
	var known []string
	for _, list := range [][]provider.Device{s.rails.Found, s.rails.Late} {
		for _, d := range list {
			known = append(known, d.Name)
		}
	}
	for _, r := range s.machine.RDMA {
		known = append(known, r.Name)
	}
	for _, n := range s.machine.Nets() {
		known = append(known, n.Name)
	}
	slices.SortFunc(known, topo.Natural)
	known = slices.Compact(known)
	var unmatched []string
	matched := false
	for _, p := range s.opt.Devices {
		switch {
		case strings.HasPrefix(p, "!") || strings.HasPrefix(p, "^"): // excludes what need not be here
		case strings.HasPrefix(p, "#") || p == "memory" || slices.ContainsFunc(known, func(name string) bool { return topo.Patterns{p}.Judge(-1, name, name+"-rdm") == topo.Named }):
			matched = true
		default:
			unmatched = append(unmatched, p)
		}
	}
	for _, p := range unmatched {
		report := s.Fail
		if matched && strings.ContainsAny(p, "*?[") { // one list for machines of several kinds
			report = s.Warn
		}
		report("devices-option", fmt.Sprintf("option devices has %q, and no device has such a name; devices here: %s", p, strings.Join(known, ", ")), "write a name that is here, or leave option devices out", "unset GORAIL_DEVICES")
	}
	if len(unmatched) == 0 {
		s.Pass("devices-option", "devices=%s", orAll(s.opt.Devices))
	}
}

func (s *checker) chosen() {
	remote := s.remote()
	switch {
	case s.railErr != nil:
		s.Fail("rails", "no device can be a rail: "+s.railErr.Error(), "do what the first FAIL above says, else what this text says")
		return
	case len(s.rails.Now) == 0:
		s.Fail("rails", "no device can be a rail: "+rails.Reasons(s.rails.Left), "change option devices or provider")
		return
	case len(remote) == 0 && len(s.rails.Late) == 0:
		s.Warn("rails", "no rail leaves this host: "+rails.Names(s.rails.Now), "bring a network interface up, or change option devices, unless all peers are on this host")
	}
	for _, d := range s.rails.Now {
		s.Pass("rails", "%s", describe(d))
	}
	for _, l := range s.rails.Left {
		s.Pass("rails", "not used: %s", l)
	}
	for _, d := range s.rails.Late {
		remedy := "bring the link up: cable, switch port, ip link set " + d.Name + " up; or leave the device out: devices=!" + d.Name
		text := rails.Name(d) + " would be a rail and is down"
		if d.Waits != "" {
			text += ": " + d.Waits
		}
		if r := s.machine.Device(d.Name); r != nil && !s.shouldBeUp(*r) {
			s.Warn("rails-waiting", text, remedy)
			continue
		}
		s.Fail("rails-waiting", text, remedy, "ip link set "+d.Name+" up")
	}
	if len(s.rails.Late) == 0 {
		s.Pass("rails-waiting", "no rail waits for its link")
	}
}

func describe(d provider.Device) string {
	text := rails.Name(d)
	if d.Mbps > 0 {
		text += ", " + gbps(int(d.Mbps))
	}
	if d.Addr != "" {
		text += ", address " + d.Addr
	}
	if d.NUMA >= 0 {
		text += fmt.Sprintf(", NUMA node %d", d.NUMA)
	}
	return text
}
