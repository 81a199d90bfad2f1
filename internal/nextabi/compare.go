package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

func number(all []string) int { n, _ := strconv.Atoi(strings.Join(all, "")); return n }

func itoa(n int) string { return strconv.Itoa(n) }

// unread are the members behind initErr: only NIXL's own engines read them. Our header has other bytes in their place.
const bytesInPlace = "elsewhere_"

var unread = []member{{"localAgent", "string"}, {"enableTelemetry_", "bool"}}

// alike are members whose types differ between releases, with one layout.
var alike = []string{"telemetryEvents_"}

// compare says what moved, a line each.
func compare(ours, theirs headers, answered map[string]bool) []string {
	var lines []string
	if ours.version != theirs.version {
		lines = append(lines, fmt.Sprintf("NIXL_PLUGIN_API_VERSION: was %s, is %q", ours.version, theirs.version))
	}
	lines = append(lines, functions(ours.classes[engine].functions, theirs.classes[engine].functions, answered, ": the plugin refuses this NIXL")...)
	for _, f := range theirs.classes[engine].functions {
		if f.pure && slices.Contains(bodies, f.name) {
			lines = append(lines, fmt.Sprintf("changed: %s has no body any more", f))
		}
	}
	for _, name := range classNames {
		mine, other := ours.classes[name], theirs.classes[name]
		if _, ok := theirs.classes[name]; !ok {
			lines = append(lines, name+": removed")
			continue
		}
		if name != engine && len(mine.functions) > 0 {
			for _, line := range functions(mine.functions, other.functions, nil, "") {
				lines = append(lines, name+": "+line)
			}
		}
		for _, line := range members(mine.members, other.members) {
			lines = append(lines, name+": "+line)
		}
	}
	for _, name := range enumNames {
		lines = append(lines, numbers(name, ours.enums[name], theirs.enums[name])...)
	}
	return lines
}

// slot is a function's place in the table. A destructor takes two.
func slot(all []function, i int) int {
	n := i
	for _, f := range all[:i] {
		if strings.HasPrefix(f.name, "~") {
			n++
		}
	}
	return n
}

func (f function) String() string { return f.name + f.params }

// functions compares two tables: inserted, removed, renamed, changed and moved functions. so is what follows for the plugin.
func functions(ours, theirs []function, answered map[string]bool, so string) []string {
	var lines []string
	same := func(a, b function) bool { return a.String() == b.String() }
	stay := longest(ours, theirs, same)
	find := func(all []function, like function, by func(a, b function) bool) int {
		return slices.IndexFunc(all, func(f function) bool { return by(f, like) })
	}
	byName := func(a, b function) bool { return a.name == b.name }
	gone := map[string]bool{} // of ours, described by the line of one of theirs
	for i, f := range theirs {
		at := slot(theirs, i)
		if old := find(ours, f, same); old >= 0 {
			if was := slot(ours, old); !stay[f.String()] {
				lines = append(lines, fmt.Sprintf("moved: %s, from place %d to %d%s", f, was, at, so))
			}
			continue
		}
		if old := find(ours, f, byName); old >= 0 && find(theirs, ours[old], same) < 0 && !gone[ours[old].String()] {
			gone[ours[old].String()] = true
			lines = append(lines, fmt.Sprintf("changed: %s at place %d, had %s%s", f, at, ours[old].params, so))
			continue
		}
		if old := renamed(ours, theirs, i); old >= 0 && !gone[ours[old].String()] {
			gone[ours[old].String()] = true
			lines = append(lines, fmt.Sprintf("renamed: %s at place %d, was %s%s", f, at, ours[old].name, so))
			continue
		}
		lines = append(lines, inserted(f, at, answered, so))
	}
	for i, f := range ours {
		if find(theirs, f, same) < 0 && !gone[f.String()] {
			lines = append(lines, fmt.Sprintf("removed: %s, was at place %d%s", f, slot(ours, i), so))
		}
	}
	return lines
}

// bodies are the functions of the engine that NIXL gives a body. Our header has none for them.
var bodies = []string{"prepMemView", "releaseMemView", "getPublicData", "getConnInfo", "loadRemoteConnInfo", "loadRemoteMD", "loadLocalMD", "getNotifs", "genNotif", "queryMem", "estimateXferCost"}

func inserted(f function, at int, answered map[string]bool, so string) string {
	switch {
	case so == "":
	case answered[f.name] && !f.pure:
		so = ": the plugin answers it as NIXL's base class does"
	case !f.pure:
		so += "; see known_additions in cshim/identify/known_tables.cpp"
	default:
		so = ": it has no body, so every backend must have one" + strings.ReplaceAll(so, ": ", ", and ")
	}
	return fmt.Sprintf("inserted: %s at place %d%s", f, at, so)
}

// renamed returns the one of ours that has the same parameters between the same neighbours, or -1.
func renamed(ours, theirs []function, i int) int {
	near := func(all []function, i int) string {
		if i < 0 || i >= len(all) {
			return ""
		}
		return all[i].String()
	}
	for old, f := range ours {
		gone := !slices.ContainsFunc(theirs, func(g function) bool { return g.String() == f.String() })
		if gone && f.params == theirs[i].params && near(ours, old-1) == near(theirs, i-1) && near(ours, old+1) == near(theirs, i+1) {
			return old
		}
	}
	return -1
}

// longest returns the functions of a longest common part, which did not move.
func longest(a, b []function, same func(a, b function) bool) map[string]bool {
	length := make([][]int, len(a)+1)
	for i := range length {
		length[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if same(a[i], b[j]) {
				length[i][j] = 1 + length[i+1][j+1]
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	stay := map[string]bool{}
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case same(a[i], b[j]):
			stay[a[i].String()] = true
			i, j = i+1, j+1
		case length[i+1][j] >= length[i][j+1]:
			i++
		default:
			j++
		}
	}
	return stay
}

// members compares the data of a class. What is behind initErr of an engine moves nothing that the agent reads.
func members(ours, theirs []member) []string {
	var lines []string
	if i := slices.IndexFunc(ours, func(m member) bool { return m.name == bytesInPlace }); i >= 0 {
		ours = append(slices.Clone(ours[:i]), unread...)
	}
	place := func(all []member, name string) int {
		return slices.IndexFunc(all, func(m member) bool { return m.name == name })
	}
	for i, m := range theirs {
		old := place(ours, m.name)
		switch {
		case old < 0:
			lines = append(lines, fmt.Sprintf("inserted: member %s (%s) at place %d%s", m.name, m.kind, i, effect(theirs, i)))
		case ours[old].kind != m.kind && !slices.Contains(alike, m.name):
			lines = append(lines, fmt.Sprintf("changed: member %s is %s, was %s", m.name, m.kind, ours[old].kind))
		}
	}
	last := -1
	for _, m := range theirs {
		if old := place(ours, m.name); old >= 0 {
			if old < last {
				lines = append(lines, fmt.Sprintf("moved: member %s is behind %s", m.name, ours[last].name))
			}
			last = max(last, old)
		}
	}
	for _, m := range ours {
		if place(theirs, m.name) < 0 {
			lines = append(lines, fmt.Sprintf("removed: member %s (%s)", m.name, m.kind))
		}
	}
	return lines
}

// effect says what a further member does.
func effect(theirs []member, at int) string {
	initErr := slices.IndexFunc(theirs, func(m member) bool { return m.name == "initErr" })
	switch {
	case initErr < 0 && at == len(theirs)-1:
		return ", the last: it moves no other"
	case initErr < 0:
		return ": it may move the members behind it"
	case at > initErr:
		return ", behind initErr: it moves nothing that the agent reads"
	}
	return ", in front of initErr: this NIXL gives the plugin's engines back (GR-1082)"
}

func numbers(name string, ours, theirs []value) []string {
	var lines []string
	of := func(all []value, name string) string {
		for _, v := range all {
			if v.name == name {
				return v.number
			}
		}
		return ""
	}
	for _, v := range theirs {
		switch old := of(ours, v.name); old {
		case "":
			lines = append(lines, fmt.Sprintf("%s: inserted: %s = %s", name, v.name, v.number))
		case v.number:
		default:
			lines = append(lines, fmt.Sprintf("%s: changed: %s is %s, was %s", name, v.name, v.number, old))
		}
	}
	for _, v := range ours {
		if of(theirs, v.name) == "" {
			lines = append(lines, fmt.Sprintf("%s: removed: %s (%s)", name, v.name, v.number))
		}
	}
	return lines
}
