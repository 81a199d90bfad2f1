package history

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// around is how many events of the engines of a violation are shown before it and after it.
const around = 20

// Summary is one line with what happened, and one for each exception that was needed.
func (r *Report) Summary() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.Counts)) {
		fmt.Fprintf(&b, "%s: %d; ", name, r.Counts[name])
	}
	for i := range Exceptions {
		if n := r.Excused[&Exceptions[i]]; n > 0 {
			fmt.Fprintf(&b, "\n  excused %d times: %s: %s (%s)", n, Exceptions[i].Property, Exceptions[i].Reason, Exceptions[i].Doc)
		}
	}
	return b.String()
}

// Failures describes up to n violations, each with the history around it.
func (r *Report) Failures(n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d violations%s", len(r.Violations), r.firsts())
	for _, v := range r.Violations[:min(n, len(r.Violations))] {
		fmt.Fprintf(&b, "\n\n%s: %s (faults meanwhile: %v)\n", v.Property, v.Why, v.Faults)
		for _, e := range r.near(v.Event) {
			mark := "  "
			if e.At == v.Event.At && e.By == v.Event.By {
				mark = "> "
			}
			b.WriteString(mark + e.line(r.history[0].At) + "\n")
		}
	}
	return b.String()
}

// firsts says of each broken promise how often it was broken, and when first, since the begin of the history.
func (r *Report) firsts() (out string) {
	count, first := map[Property]int{}, map[Property]int64{}
	for _, v := range r.Violations {
		if count[v.Property]++; count[v.Property] == 1 || v.Event.At < first[v.Property] {
			first[v.Property] = v.Event.At
		}
	}
	for _, p := range slices.Sorted(maps.Keys(count)) {
		out += fmt.Sprintf("; %s: %d, first after %.1f s", p, count[p], float64(first[p]-r.history[0].At)/1e9)
	}
	return out
}

// near returns the events around one: those of its engines, and all of the call or the notification that it is about.
func (r *Report) near(v Event) []Event {
	at, _ := slices.BinarySearchFunc(r.history, v.At, func(e Event, at int64) int { return int(min(1, max(-1, e.At-at))) })
	keep := map[int]bool{}
	about := func(e Event) bool {
		return e.By == v.By || e.By == v.To && v.To != Engine{}
	}
	for _, step := range []int{-1, 1} {
		for i, n := at, 0; i >= 0 && i < len(r.history) && n < around; i += step {
			if about(r.history[i]) {
				keep[i] = true
				n++
			}
		}
	}
	for i, e := range r.history {
		same := v.Op != 0 && e.Op == v.Op && (e.By == v.By || e.Kind == Taken && e.To == v.By)
		fault := e.Kind == Killed && about(e)
		if same || fault || v.Note != 0 && e.Note == v.Note && about(e) && (e.To == v.To || e.To == v.By) {
			keep[i] = true
		}
	}
	var out []Event
	for _, i := range slices.Sorted(maps.Keys(keep)) {
		out = append(out, r.history[i])
	}
	return out
}
