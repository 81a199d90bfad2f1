package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// JSON writes what an agent would use as one object.
func (i *Info) JSON(w io.Writer) error { return writeJSON(w, i) }

func writeJSON(w io.Writer, object any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(object)
}

// Text writes it as tables for a screen.
func (i *Info) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "gorail %s, plugin %s\nNIXL: %s\n", i.Tool, i.Plugin, orUnknown(i.NIXL))
	if i.Places != "" {
		fmt.Fprintf(&b, "places: %s\n", i.Places)
	}
	if len(i.Options) > 0 {
		fmt.Fprintf(&b, "options: %s\n", strings.Join(i.Options, " "))
	}
	var open, waits, unused, gpus, ways [][]string
	for _, r := range i.Rails {
		if r.Waits != "" {
			waits = append(waits, []string{r.Name, r.Waits})
			continue
		}
		speed := "-"
		if r.Mbps > 0 {
			speed = gbps(int(r.Mbps))
		}
		open = append(open, []string{r.Name, speed, orDash(r.Address), node(r.NUMA), r.Reaches})
	}
	for _, group := range byReason(i.Unused) {
		unused = append(unused, []string{oneLine(group[0].Why), few(group)})
	}
	for _, g := range i.GPUs {
		near := "-"
		if len(g.Near) > 0 {
			near = strings.Join(g.Near, ", ") + " (" + g.How + ")"
		}
		gpus = append(gpus, []string{g.PCI, node(g.NUMA), near})
	}
	for _, way := range i.Ways {
		ways = append(ways, []string{way.Memory, way.Peer, oneLine(way.By)})
	}
	writeTable(&b, "Rails that an agent opens", "RAIL\tSPEED\tADDRESS\tNUMA\tREACHES", open)
	writeTable(&b, "Rails that join when they come up", "RAIL\tWAITS FOR", waits)
	writeTable(&b, "Devices that no agent uses here", "WHY\tDEVICES", unused)
	writeTable(&b, "GPUs", "PCI\tNUMA\tNEAREST RAILS TO OTHER HOSTS", gpus)
	writeTable(&b, "How memory moves", "MEMORY\tTO\tBY", ways)
	_, err := io.WriteString(w, b.String())
	return err
}

// writeTable writes rows below a title; nothing without rows.
func writeTable(b *strings.Builder, title, header string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s\n", title)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  "+header)
	for _, r := range rows {
		fmt.Fprintln(t, "  "+strings.Join(r, "\t"))
	}
	_ = t.Flush() // a Builder takes all
}

// byReason groups devices, so that a machine with many fits on a screen.
func byReason(all []Unused) (groups [][]Unused) {
	for _, u := range all {
		i := slices.IndexFunc(groups, func(g []Unused) bool { return g[0].Why == u.Why })
		if i < 0 {
			groups = append(groups, nil)
			i = len(groups) - 1
		}
		groups[i] = append(groups[i], u)
	}
	return groups
}

// few names the first devices of a group; --json has all.
func few(group []Unused) string {
	const most = 4
	var names []string
	for _, u := range group[:min(most, len(group))] {
		names = append(names, u.Name)
	}
	text := strings.Join(names, ", ")
	if left := len(group) - most; left > 0 {
		text += fmt.Sprintf(" and %d more", left)
	}
	return text
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func node(n int) string {
	if n < 0 {
		return "-"
	}
	return strconv.Itoa(n)
}
