//go:build linux

package topo

import (
	"maps"
	"slices"
)

// linkTable turns messages into events. It keeps the last known state of each link. It requests a dump of all links
// (ask) at the start and after a loss, and compares. While a request is open, the next one waits for its end.
type linkTable struct {
	known map[int]Event // by index
	seq   uint32        // of the open request
	open  bool
	again bool         // messages were lost since the request
	seen  map[int]bool // links seen since the request
}

func newLinkTable() *linkTable { return &linkTable{known: map[int]Event{}} }

// ask begins a dump. It returns ok=false while a request is open; another one then follows it.
func (t *linkTable) ask() (seq uint32, ok bool) {
	if t.open {
		t.again = true
		return 0, false
	}
	t.seq++
	t.open, t.again, t.seen = true, false, map[int]bool{}
	return t.seq, true
}

// take processes one message. again means that the table may be incomplete and needs another dump.
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
