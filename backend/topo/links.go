//go:build linux

package topo

import (
	"maps"
	"slices"
)

// linkTable turns messages into events: it knows what was last said of each link. It asks for all links (ask) when it
// begins and when something was lost, and compares; while such a question is open, another one waits for its end.
type linkTable struct {
	known map[int]Event // by index
	seq   uint32        // of the open question
	open  bool
	again bool         // something was lost since it was asked
	seen  map[int]bool // links named since then
}

func newLinkTable() *linkTable { return &linkTable{known: map[int]Event{}} }

// ask begins to compare. Without ok a question is open: the next one follows it.
func (t *linkTable) ask() (seq uint32, ok bool) {
	if t.open {
		t.again = true
		return 0, false
	}
	t.seq++
	t.open, t.again, t.seen = true, false, map[int]bool{}
	return t.seq, true
}

// take enters one message. again: what the table knows may be incomplete, ask once more.
func (t *linkTable) take(m linkMessage) (events []Event, again bool) {
	switch m.kind {
	case linkIs:
		return t.is(m), false
	case linkGone:
		return t.gone(m.index), false
	case addrChange:
		if e, ok := t.known[m.index]; ok {
			e.Addrs = true
			events = append(events, e)
		}
		return events, false
	}
	if !t.open || m.seq != t.seq {
		return nil, false
	}
	t.again = t.again || m.interrupted || m.kind == failure
	t.open = false
	if t.again {
		return nil, true
	}
	for _, index := range slices.Sorted(maps.Keys(t.known)) {
		if !t.seen[index] {
			events = append(events, t.gone(index)...)
		}
	}
	return events, false
}

func (t *linkTable) is(m linkMessage) (events []Event) {
	old, had := t.known[m.index]
	if m.interrupted && m.seq == t.seq {
		t.again = true
	}
	if m.name == "" {
		m.name = old.Name
	}
	if m.index <= 0 || m.name == "" {
		return nil
	}
	if t.open {
		t.seen[m.index] = true
	}
	now := Event{Name: m.name, Index: m.index, Up: m.up}
	if now == old {
		return nil
	}
	if had && old.Name != now.Name { // renamed
		events = t.gone(m.index)
	}
	t.known[m.index] = now
	return append(events, now)
}

func (t *linkTable) gone(index int) []Event {
	e, had := t.known[index]
	if !had {
		return nil
	}
	delete(t.known, index)
	e.Up, e.Gone = false, true
	return []Event{e}
}
