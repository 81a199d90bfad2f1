package top

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"gorail/backend/stats"
	"gorail/gorail/live"
)

// aged is the age from which a transfer in flight stands out.
const aged = 10 * time.Second

// Widths of columns with names, and of a bar.
const (
	nameWidth = 16
	barWidth  = 20
)

// lines are all lines: the engines, then the transfers in flight and the last warnings of all.
func lines(b *Board) (list []line) {
	list = append(list, summary(b))
	if b.Err != nil {
		return append(list, text(bad, "%v", b.Err))
	}
	list = append(list, text(dim, "%-*s%-*sWRITE/s READ/s  OPS/s  FLIGHT OLDEST SESSIONS", nameWidth, "AGENT", nameWidth, "PROCESS"))
	for i := range b.Rows {
		list = append(list, b.Rows[i].lines()...)
	}
	all, n := transfers(b.Rows)
	list = append(list, nil, text(title, "%d TRANSFERS IN FLIGHT, THE OLDEST FIRST", n),
		text(dim, "%-*s%-*sOP    STATE   LEFT            AGE   IDLE  RAILS, REASON", nameWidth, "AGENT", nameWidth, "PEER"))
	for i := range all {
		list = append(list, all[i].line())
	}
	if n > len(all) {
		list = append(list, text(dim, "and %d more", n-len(all)))
	}
	list = append(list, nil, text(title, "LAST WARNINGS"))
	for _, e := range warnings(b.Rows) {
		how := warning
		if strings.EqualFold(e.Level, "error") {
			how = bad
		}
		list = append(list, text(dim, "%s ", e.Time.Format(time.TimeOnly)).column(plain, nameWidth, e.agent).and(how, e.Text))
	}
	return list
}

// summary is the first line.
func summary(b *Board) line {
	silent, host := 0, ""
	for i := range b.Rows {
		if b.Rows[i].Error != "" {
			silent++
		}
		if b.Rows[i].Live != nil && host == "" {
			host = " on " + b.Rows[i].Host
		}
	}
	l := text(title, "gorail top  %s  ", b.Now.Format(time.TimeOnly)).and(plain, fmt.Sprintf("engines: %d%s", len(b.Rows), host))
	if silent > 0 {
		l = l.and(bad, fmt.Sprintf("  %d without an answer", silent))
	}
	return l
}

func (r *Row) lines() []line {
	if r.Live == nil {
		return []line{text(bad, "%s: %s", r.Socket, r.Error)}
	}
	number := fmt.Sprint(" ", r.PID) // a long command is cut, the number never: it is what the reader goes on with
	head := line{}.column(title, nameWidth, r.Agent).column(plain, nameWidth, ansi.Truncate(live.Printable(r.Command), nameWidth-1-len(number), "…")+number)
	if r.Error != "" {
		return []line{head.and(bad, fmt.Sprintf("no answer for %s: %s", short(r.Silent), strings.TrimPrefix(r.Error, "no answer: ")))}
	}
	oldest, how := "-", plain
	if len(r.Transfers) > 0 {
		age := seconds(r.Transfers[0].Age)
		if oldest = short(age); age >= aged {
			how = warning
		}
	}
	e := r.Rates.Engine
	head = head.column(plain, 8, rate(e.Written)).column(plain, 8, rate(e.Read)).column(plain, 7, fmt.Sprintf("%.0f", e.Operations)).
		column(plain, 7, fmt.Sprint(len(r.Transfers)+r.LeftOut)).column(how, 7, oldest)
	list := []line{append(head, r.sessions()...)}
	for i := range r.Live.Rails {
		list = append(list, r.rail(&r.Live.Rails[i]))
	}
	list = append(list, r.byPeers()...)
	if s := r.Live.Staged; s.PackedBytes > 0 {
		list = append(list, text(plain, "  ").column(plain, nameWidth, "GPUs").and(plain, fmt.Sprintf("compressed %.2fx since start", float64(s.Packed)/float64(s.PackedBytes))))
	}
	times := text(dim, "  p50/p99 since start")
	for _, t := range r.times() {
		if t.Count() > t.Coarse {
			times = times.and(plain, fmt.Sprintf(" %s <%s/<%s", class(t.Most), latency(t.Quantile(0.5)), latency(t.Quantile(0.99))))
		}
	}
	return append(list, times)
}

// fresh is how long what a peer has said counts as now. A peer that moves bytes says so every 1.25 s.
const fresh = stats.Since(4 * time.Second)

// byPeers is what peers say of the bytes that they move here, and what this process copies of them.
func (r *Row) byPeers() []line {
	n, written, read := 0, 0.0, 0.0
	for i := range r.Peers {
		p := &r.Peers[i]
		if p.Direction != stats.Target || p.Ended() {
			continue
		}
		n++
		if m := p.Moves; m != nil && m.Age != stats.Never && m.Age < fresh {
			written, read = written+m.WrittenRate, read+m.ReadRate
		}
	}
	if n == 0 {
		return nil
	}
	who := fmt.Sprintf("%d peers say", n)
	if n == 1 {
		who = "1 peer says"
	}
	known := fmt.Sprintf("W %s R %s, as %s", rate(written), rate(read), who)
	if v := r.Rates.Engine.ForPeers; v > 0 {
		known += fmt.Sprintf("; this process copies %s of it", rate(v))
	}
	return []line{text(plain, "  ").column(plain, nameWidth, "by peers").and(plain, known)}
}

// sessions counts the sessions by state. Those that are not ready come first: a narrow screen cuts the end.
func (r *Row) sessions() (l line) {
	count := map[string]int{}
	for i := range r.Peers {
		if p := &r.Peers[i]; !p.Ended() {
			count[p.State]++
		}
	}
	ready := count["ready"]
	delete(count, "ready")
	for _, state := range slices.Sorted(maps.Keys(count)) {
		l = l.and(warning, fmt.Sprintf("%d %s ", count[state], state))
	}
	return l.and(plain, fmt.Sprintf("%d ready", ready))
}

// rail is a rail's line: the busier direction beside the nominal speed.
func (r *Row) rail(k *stats.Rail) line {
	how := map[stats.RailState]look{stats.Up: good, stats.Degraded: warning, stats.Down: bad, stats.Idle: dim}[k.State]
	rates := r.Rates.Rails[k.Name]
	v, direction := rates.Written, "W"
	if rates.Read > v {
		v, direction = rates.Read, "R"
	}
	drawn, nominal := strings.Repeat(" ", barWidth+7), ""
	if full := float64(k.Mbps) * 1e6 / 8; full > 0 {
		n := min(barWidth, int(v/full*barWidth+0.5))
		drawn = fmt.Sprintf("[%s%s] %3.0f%%", strings.Repeat("|", n), strings.Repeat(".", barWidth-n), 100*v/full)
		nominal = " of " + rate(full) + "/s"
	}
	l := text(plain, "  ").column(plain, nameWidth, k.Name).column(how, 9, string(k.State)).and(how, drawn+" ").column(plain, 26, direction+" "+rate(v)+"/s"+nominal)
	if k.PackedBytes > 0 {
		l = l.and(plain, fmt.Sprintf(" compressed %.2fx since start", float64(k.Packed)/float64(k.PackedBytes)))
	}
	for _, c := range []struct {
		n    uint64
		word string
	}{{k.Errors, "errors"}, {k.Fences, "fences"}, {k.Retries, "retries"}} {
		if c.n > 0 {
			l = l.and(warning, fmt.Sprintf(" %d %s", c.n, c.word))
		}
	}
	return l
}

func class(most uint64) string {
	if most == 0 {
		return "larger"
	}
	return "≤" + size(float64(most))
}

func (x *transfer) line() line {
	how := plain
	if seconds(x.Age) >= aged {
		how = warning
	}
	left := size(float64(x.Left)) + "/" + size(float64(x.Bytes))
	return line{}.column(plain, nameWidth, x.agent).column(plain, nameWidth, x.Peer).column(plain, 6, x.Op).column(plain, 8, string(x.State)).column(plain, 16, left).
		column(how, 6, short(seconds(x.Age))).column(how, 6, short(time.Duration(x.Idle))).and(plain, strings.TrimSpace(strings.Join(x.Rails, " ")+" "+x.Reason))
}
