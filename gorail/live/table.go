package live

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/docker/go-units"

	"gorail/backend/stats"
)

// WriteStats writes what engines count, for people. before has earlier answers by socket, for rates.
func WriteStats(out io.Writer, engines []Engine, before map[string]*stats.Live) error {
	w := &bytes.Buffer{}
	for i, e := range engines {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if e.Live == nil {
			fmt.Fprintf(w, "%s: %s\n", e.Socket, e.Error)
			continue
		}
		if err := writeEngine(w, e.Live, Between(before[e.Socket], e.Live), before[e.Socket] != nil); err != nil {
			return err
		}
	}
	return printable(out, w)
}

// printable writes text that cannot control a terminal: peers choose their names.
func printable(out io.Writer, text *bytes.Buffer) error {
	for line := range strings.Lines(text.String()) {
		if _, err := fmt.Fprintln(out, Printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return err
		}
	}
	return nil
}

// Printable keeps names and log lines, which peers may choose, from controlling the terminal.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, s)
}

func writeEngine(w io.Writer, l *stats.Live, d Delta, rates bool) error {
	fmt.Fprintf(w, "agent %s: %s, process %d on %s, version %s, up %s\n", l.Agent, l.Command, l.PID, l.Host, l.Version,
		l.Now.Sub(l.Started).Round(time.Second))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := "  RAIL\tSTATE\tLINKS\tWRITTEN\tREAD\tIN FLIGHT\tERRORS\tRETRIES\tFENCES\tLAST COMPLETION\tp50\tp99"
	if rates {
		head += "\tWRITE/s\tREAD/s"
	}
	fmt.Fprintln(t, head)
	for _, r := range l.Rails {
		all := merged(r.Times)
		fmt.Fprintf(t, "  %s\t%s\t%d\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s", r.Name, r.State, r.Links, Bytes(r.BytesWritten), Bytes(r.BytesRead),
			Bytes(r.InFlight), r.Errors, r.Retries, r.Fences, Seconds(r.Idle), quantile(all, 0.5), quantile(all, 0.99))
		if rates {
			fmt.Fprintf(t, "\t%s\t%s", Bytes(uint64(d.Rails[r.Name].Written)), Bytes(uint64(d.Rails[r.Name].Read)))
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintln(t, "  PEER\tDIRECTION\tSTATE\tWRITTEN\tREAD\tIN FLIGHT\tLINKS")
	for i := range l.Peers {
		p := &l.Peers[i]
		var links []string
		for _, k := range p.Links {
			links = append(links, k.Rail+" "+k.Phase)
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Agent, p.Direction, p.State, Bytes(p.BytesWritten), Bytes(p.BytesRead), Bytes(p.InFlight),
			strings.Join(links, ", "))
	}
	return t.Flush()
}

// WriteTransfers writes the transfers in flight of all engines, the oldest of each engine first.
func WriteTransfers(out io.Writer, engines []Engine) error {
	w := &bytes.Buffer{}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "AGENT\tPROCESS\tPEER\tOP\tSTATE\tBYTES\tLEFT\tAGE\tLAST COMPLETION\tRAILS\tREASON")
	for _, e := range engines {
		if e.Live == nil {
			fmt.Fprintf(t, "%s: %s\n", e.Socket, e.Error)
			continue
		}
		for _, x := range e.Transfers {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Agent, e.PID, x.Peer, x.Op, x.State, Bytes(x.Bytes), Bytes(x.Left),
				Seconds(stats.Since(x.Age*float64(time.Second))), Seconds(x.Idle), strings.Join(x.Rails, " "), x.Reason)
		}
		if e.LeftOut > 0 {
			fmt.Fprintf(t, "%s\t%d\tand %d more\n", e.Agent, e.PID, e.LeftOut)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return printable(out, w)
}

// Bytes formats a number of bytes.
func Bytes(n uint64) string { return units.BytesSize(float64(n)) }

// merged adds up the histograms of all sizes.
func merged(list []stats.Times) (all stats.Times) {
	for _, t := range list {
		for i, n := range t.Buckets {
			if i == len(all.Buckets) {
				all.Buckets = append(all.Buckets, 0)
			}
			all.Buckets[i] += n
		}
	}
	return all
}

// quantile is an upper bound, which is a power of two.
func quantile(t stats.Times, q float64) string {
	if d := t.Quantile(q); d > 0 {
		return "<" + d.String()
	}
	return "-"
}
