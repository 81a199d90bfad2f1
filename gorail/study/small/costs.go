package small

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"gorail/gorail/measure"
	"gorail/gorail/report"
	"gorail/gorail/study/result"
)

// costs are what a WRITE costs beside time: allocations first, then locks and switches.
func (v *view) costs() []result.Section {
	keys := []string{"size", "threads", "agents", "backend"}
	allocs := result.Table{Title: "Allocations a WRITE", Keys: len(keys), Columns: result.Columns(append(keys, "-C at initiator", "-C at target", "-Go at initiator", "-Go at target", "-faults at initiator", "-faults at target")...)}
	locks := result.Table{Title: "Waits a WRITE", Keys: len(keys), Columns: result.Columns(append(keys, "-held locks at initiator", "-held locks at target", "-ns for Go's locks at initiator",
		"-ns for Go's locks at target", "-sleeps at initiator", "-sleeps at target", "-preempted at initiator", "-preempted at target")...)}
	for _, p := range v.Points() {
		if p.Depth != 1 {
			continue
		}
		for _, s := range v.Subjects {
			c := v.Cell(s, p)
			a, b := c.Cost(0), c.Cost(1)
			if a.N == 0 {
				continue
			}
			row := []result.Cell{result.Word(p.Shape()), result.Word(fmt.Sprint(p.Threads)), result.Word(fmt.Sprint(p.Engines())), result.Word(s)}
			add := func(t *result.Table, of ...func(measure.Cost) float64) {
				cells := append([]result.Cell{}, row...)
				for _, f := range of {
					cells = append(cells, result.Num(f(a)), result.Num(f(b)))
				}
				t.Rows = append(t.Rows, cells)
			}
			add(&allocs, mallocs, objects, each(func(c measure.Cost) uint64 { return c.Faults }))
			add(&locks, each(func(c measure.Cost) uint64 { return c.Contended }), waits, each(func(c measure.Cost) uint64 { return c.Switches }), each(func(c measure.Cost) uint64 { return c.Preempted }))
		}
	}
	if len(allocs.Rows) == 0 {
		return nil
	}
	callers := v.callers()
	return []result.Section{
		{Title: "Allocations", Text: "Counted in all threads of a process: calls of malloc, calloc and the like from every library (the backend's, NIXL's, C++'s), objects on the heap of GORAIL's own Go runtime, and page faults that no disk served.",
			Tables: []result.Table{allocs, callers}},
		{Title: "Locks", Text: "A held lock is a pthread lock that another thread held when it was asked for. A sleep is a voluntary context switch: a thread waited for a lock, a message or a timer.",
			Tables: []result.Table{locks}},
	}
}

// callers is who allocates in C at the initiator.
func (v *view) callers() result.Table {
	t := result.Table{Title: "Who allocates in C at the initiator", Keys: 5, Columns: result.Columns("size", "threads", "agents", "backend", "library", "-a WRITE")}
	for _, p := range v.Points() {
		if p.Depth != 1 {
			continue
		}
		for _, s := range v.Subjects {
			cell := v.Cell(s, p)
			c := cell.Cost(0)
			if c.Traced == 0 {
				continue
			}
			row := func(library string, n uint64) {
				t.Rows = append(t.Rows, []result.Cell{result.Word(p.Shape()), result.Word(fmt.Sprint(p.Threads)), result.Word(fmt.Sprint(p.Engines())), result.Word(s),
					result.Word(library), result.Num(float64(n) / float64(c.Traced))})
			}
			own := v.plugin(s)
			row(own, c.Callers[own])
			for _, name := range slices.Sorted(maps.Keys(c.Callers)) {
				if name != own && name != "" { // this program
					row(name, c.Callers[name])
				}
			}
		}
	}
	return t
}

// plugin is the file of a subject's backend.
func (v *view) plugin(subject string) string {
	return "libplugin_" + v.backends[subject] + ".so"
}

// each is a count for each transfer.
func each(f func(measure.Cost) uint64) func(measure.Cost) float64 {
	return func(c measure.Cost) float64 { return float64(f(c)) / float64(c.N) }
}

var mallocs = each(func(c measure.Cost) uint64 { return c.Allocs })

// leastObjects is the number of transfers from which objects of Go are told: Go counts some hundred objects late.
const leastObjects = 10_000

// objects are of Go runtimes that have told, of enough transfers; NaN without.
func objects(c measure.Cost) float64 {
	if c.Runtimes == 0 || c.GoN < leastObjects {
		return math.NaN()
	}
	return float64(c.Objects) / float64(c.GoN)
}

// waits are of Go runtimes that have told: NaN without one.
func waits(c measure.Cost) float64 { return float64(c.Wait) / float64(c.GoN) }

// spent is the answer in words: the allocations of the smallest WRITE, and what many threads wait for.
func (v *view) spent() (out []string) {
	for _, s := range v.Subjects {
		list := v.of(s, one)
		if len(list) == 0 {
			continue
		}
		c := v.Cell(s, list[0])
		a, b := c.Cost(0), c.Cost(1)
		if a.N == 0 || b.N == 0 {
			continue
		}
		text := fmt.Sprintf("%s, a WRITE of %s: %s allocations in C at the initiator (%s WRITEs were counted), %s of them by the backend's library; %s at the target", s, list[0].Shape(), few(mallocs(a)), measure.Thousands(int(a.N)),
			few(float64(a.Callers[v.plugin(s)])/float64(a.Traced)), few(mallocs(b)))
		if v := objects(a); v == v {
			text += fmt.Sprintf("; %s objects in Go at the initiator", few(v))
		}
		var busy measure.Point
		for _, p := range v.of(s, func(p measure.Point) bool { return p.Depth == 1 && p.Block == list[0].Block && p.Engines() == 1 }) {
			if p.Threads > busy.Threads {
				busy = p
			}
		}
		if busy.Threads > 1 {
			c := v.Cell(s, busy)
			n := c.Cost(0)
			text += fmt.Sprintf(". %d threads of one agent found a lock held by another thread %s times for a WRITE", busy.Threads, few(each(func(c measure.Cost) uint64 { return c.Contended })(n)))
		}
		out = append(out, text+".")
	}
	return out
}

// few is a number for each transfer in words: what is less than one in a thousand is a disturbance from elsewhere.
func few(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 0.001:
		return "less than 0.001"
	}
	return report.Num(v)
}
