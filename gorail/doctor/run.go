package doctor

import (
	"cmp"
	"slices"

	"gorail/backend/topo"
)

// Run looks at a host. The report has the order of List: causes come before their effects, so the first FAIL names the cause.
func Run(h *Host) *Report {
	s := &checker{Report: &Report{Version: SchemaVersion, Checks: []Check{}}, Host: h, machine: topo.Read(h.Sys)}
	s.options()
	s.startAgent() // it needs half a second
	if h.Try.Rails != nil {
		s.rails, s.railErr = h.Try.Rails(s.opt)
	}
	for _, area := range []func(){s.software, s.libraries, s.devices, s.links, s.memory, s.pcie, s.processes, s.choice} {
		area()
	}
	slices.SortStableFunc(s.Checks, func(a, b Check) int { return cmp.Compare(place(a.ID), place(b.ID)) })
	return s.Report
}

// place is the position of a check in List.
func place(id string) int { return slices.IndexFunc(List, func(r Row) bool { return r.ID == id }) }
