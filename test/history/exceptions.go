package history

import "slices"

// Property is a promise.
type Property string

// The promises that Check looks for.
const (
	Bytes     Property = "bytes"
	Delivered Property = "delivered"
	Ordered   Property = "ordered"
	Untouched Property = "untouched"
	Ends      Property = "ends"
	TakenBack Property = "taken back"
	Fresh     Property = "fresh"
	Alive     Property = "alive"
	GivenBack Property = "given back"
)

// Row is what GORAIL does not promise. An empty field matches everything.
type Row struct {
	Providers []string // any of the values of option `provider`; nil: all
	Memory    string   // "DRAM", "VRAM"
	Property  Property
	Place     Place
	Result    Result // of the transfer that it is about
	Fault     Kind   // one that hit an engine of the event between the begin of the call and the event
	Reason    string
	Doc       string // the page, and words that the page has
}

// Exceptions are all exceptions, by provider and property.
var Exceptions = []Row{
	{Property: Untouched, Place: Remote, Result: Released, Reason: "what was posted of a released WRITE may still drain",
		Doc: "docs/promises.md: A WRITE that was posted may still drain"},
	{Property: Untouched, Place: Remote, Result: NotFound, Reason: "the status is the agent's own: the target is quiet a round trip later",
		Doc: "docs/promises.md: The target's memory is quiet when its endpoints"},
	{Providers: []string{"tcp"}, Property: Untouched, Place: Gone, Fault: Stopped, Reason: "a holder that was stopped for longer than cancel_timeout: the window in flight may land",
		Doc: "docs/promises.md: at most the window in flight may land afterwards"},
	{Providers: []string{"sm"}, Property: TakenBack, Fault: Stopped, Reason: "a process that stands still in a copy: deregisterMem returns an error that says so",
		Doc: "docs/one-host.md: Deregistration then returns an error that says so"},
	{Providers: []string{"sm"}, Property: Untouched, Fault: Stopped, Reason: "a process was stopped between its look at the table and its copy",
		Doc: "docs/one-host.md: between its look at the table and its call"},
	{Providers: []string{"efa", "cxi"}, Property: Untouched, Place: Local, Reason: "a shared endpoint cannot be closed: local memory is not quiet after a removal",
		Result: NotFound, Doc: "docs/promises.md: not on EFA and CXI: release the request"},
	{Providers: []string{"efa", "cxi"}, Property: Untouched, Place: Gone, Fault: Killed, Reason: "a shared endpoint ends nobody's access: the dead peer's packets may be under way",
		Doc: "docs/promises.md: endpoints cannot be closed"},
	{Providers: []string{"sm"}, Memory: "VRAM", Property: Untouched, Place: Gone, Reason: "an importer keeps its mapping of GPU memory",
		Doc: "docs/gpu.md: Memory that its owner frees stays the importer's"},
}

// matches reports whether the row excuses a violation.
func (r *Row) matches(v *Violation, p *Params) bool {
	used := func(provider string) bool { return slices.Contains(p.Providers, provider) }
	return (r.Providers == nil || slices.ContainsFunc(r.Providers, used)) &&
		(r.Memory == "" || r.Memory == p.Memory) &&
		r.Property == v.Property &&
		(r.Place == "" || r.Place == v.Event.Place) &&
		(r.Result == "" || r.Result == v.Event.Result) &&
		(r.Fault == "" || slices.Contains(v.Faults, r.Fault))
}
