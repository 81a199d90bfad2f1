package doctor

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// JSON writes the devices as one object.
func (d *Devices) JSON(w io.Writer) error { return writeJSON(w, d) }

// Text writes them as tables for a screen.
func (d *Devices) Text(w io.Writer) error {
	var b strings.Builder
	count := 0
	for _, dev := range d.Usable {
		if dev.Waits == "" && dev.Reaches != onThisHost && dev.Reaches != inThisNamespace {
			count++
		}
	}
	fmt.Fprintf(&b, "%s: devices that reach other hosts: %d; max_rails=%d\n", d.Machine, count, d.MaxRails)
	if d.Places != "" {
		fmt.Fprintf(&b, "places: %s\n", d.Places)
	}
	if len(d.Options) > 0 {
		fmt.Fprintf(&b, "options: %s\n", strings.Join(d.Options, " "))
	}
	var usable, waits, unused [][]string
	for _, dev := range d.Usable {
		if dev.Waits != "" {
			waits = append(waits, []string{dev.Name, dev.Waits})
			continue
		}
		speed := "-"
		if dev.Mbps > 0 {
			speed = gbps(int(dev.Mbps))
		}
		pci := orDash(dev.PCI)
		if dev.Direct != "" {
			pci += ", for GPUs " + dev.Direct
		}
		usable = append(usable, []string{dev.Name, speed, node(dev.NUMA), pci, dev.Reaches})
	}
	for _, group := range byReason(d.Unused) {
		unused = append(unused, []string{oneLine(group[0].Why), few(group)})
	}
	writeTable(&b, "Usable devices", "DEVICE\tSPEED\tNUMA\tPCI\tREACHES", usable)
	writeTable(&b, "Devices that join when they come up", "DEVICE\tWAITS FOR", waits)
	writeTable(&b, "Devices that no agent uses here", "WHY\tDEVICES", unused)
	writeTable(&b, d.title(), "MEMORY\tPCI\tNUMA\tWHY\tRAILS TO OTHER HOSTS", d.rows())
	_, err := io.WriteString(w, b.String())
	return err
}

// title is what the table of regions has above it.
func (d *Devices) title() string {
	if d.Ranks == 0 {
		return "Rails of a region, if no other process of this host uses them"
	}
	title := fmt.Sprintf("Rails of a region of rank %d of %d, and its share of them", d.Rank, d.Ranks)
	if d.Starts != "" {
		title += ", if " + d.Starts
	}
	return title
}

func (d *Devices) rows() (rows [][]string) {
	for _, r := range d.Regions {
		rows = append(rows, []string{r.Memory, orDash(r.PCI), node(r.NUMA), r.Why, orDash(byShare(r.Rails))})
	}
	return rows
}

// byShare lists rails: "1.00 of a, b; 0.50 of c; for failover d". Without shares, their names.
func byShare(rails []PlannedRail) string {
	const none = -1
	names := map[float64][]string{}
	for _, r := range rails {
		share := float64(none)
		if r.Share != nil {
			share = *r.Share
		}
		names[share] = append(names[share], r.Name)
	}
	var parts []string
	for _, share := range slices.Backward(slices.Sorted(maps.Keys(names))) {
		text := strings.Join(names[share], ", ")
		switch {
		case share > 0:
			text = fmt.Sprintf("%.2f of %s", share, text)
		case share == 0:
			text = "for failover " + text
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}
