package doctor

import "gorail/backend/topo"

// Run looks at a host. Causes come before their effects, so the first FAIL names the cause.
func Run(h *Host) *Report {
	s := &scene{Report: &Report{Version: SchemaVersion, Checks: []Check{}}, Host: h, machine: topo.Read(h.Sys)}
	if !s.options() {
		return s.Report
	}
	if h.Try.Rails != nil {
		s.rails, s.railErr = h.Try.Rails(s.opt)
	}
	for _, area := range []func(){s.software, s.libraries, s.devices, s.links, s.counters, s.memory, s.pcie, s.processes, s.choice} {
		area()
	}
	return s.Report
}
