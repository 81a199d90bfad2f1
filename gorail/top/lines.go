package top

import (
	"cmp"
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

// wide is the width from which names get more room, and counts are words.
const wide = 110

// names are the widths of columns with names.
type names struct{ agent, process, rail, peer int }

func fit(width int) names {
	if width >= wide {
		return names{agent: 24, process: 24, rail: 22, peer: 24}
	}
	return names{agent: 14, process: 14, rail: 14, peer: 11}
}

// engines are the lines of all rows.
func engines(rows []Row, width int) []line {
	n := fit(width)
	list := []line{text(dim, "%-*s%-*sWRITE/s READ/s  OPS/s  FLIGHT OLDEST SESSIONS", n.agent, "AGENT", n.process, "PROCESS")}
	for i := range rows {
		list = append(list, rows[i].lines(width)...)
	}
	return list
}

func (r *Row) lines(width int) []line {
	if r.Live == nil {
		return []line{text(bad, "%s: %s", r.Socket, r.Error)}
	}
	n := fit(width)
	head := line{}.column(title, n.agent, r.Agent).column(plain, n.process, process(r.Command, r.PID, n.process))
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
	head = head.column(plain, 8, size(e.Written)).column(plain, 8, size(e.Read)).column(plain, 7, fmt.Sprintf("%.0f", e.Operations)).
		column(plain, 7, fmt.Sprint(len(r.Transfers)+r.LeftOut)).column(how, 7, oldest)
	list := []line{append(head, r.sessions()...)}
	counts := 0
	for i := range r.Rails {
		counts = max(counts, len(r.Rails[i].counts(width)))
	}
	for i := range r.Rails {
		list = append(list, r.Rails[i].line(width, counts))
	}
	return append(list, r.timeLines(width)...)
}

// process is a command and its number. A long command is cut, the number never: it is what the reader goes on with.
func process(command string, pid, width int) string {
	number := fmt.Sprint(" ", pid)
	return ansi.Truncate(live.Printable(command), width-1-len(number), "…") + number
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

// railRest is the width of a rail's line besides the name, the bar and the counts.
const railRest = 2 + 9 + 2 + 6 + 26

// counts are those that are not 0, as words if there is room.
func (r *Rail) counts(width int) (text string) {
	for _, c := range []struct {
		n            uint64
		letter, word string
	}{{r.Errors, "e%d", "%d errors"}, {r.Fences, "f%d", "%d fences"}, {r.Retries, "r%d", "%d retries"}} {
		form := c.letter
		if width >= wide {
			form = c.word
		}
		if c.n > 0 {
			text += " " + fmt.Sprintf(form, c.n)
		}
	}
	return text
}

func (r *Rail) line(width, counts int) line {
	how := map[stats.RailState]look{stats.Up: good, stats.Degraded: warning, stats.Down: bad, stats.Idle: dim}[r.State]
	space := min(max(width-railRest-fit(width).rail-counts, 5), 60)
	share, percent := 0.0, "  - "
	if r.Full > 0 {
		share = r.Rate() / r.Full
		percent = fmt.Sprintf("%3.0f%%", 100*share)
	}
	direction := "W"
	if r.Read > r.Write {
		direction = "R"
	}
	full := ""
	switch {
	case r.Nominal:
		full = " of " + size(r.Full) + "/s"
	case r.Full > 0:
		full = ", peak " + size(r.Full) + "/s"
	}
	return text(plain, "  ").column(plain, fit(width).rail, r.Name).column(how, 9, string(r.State)).and(plain, "[").and(how, bar(share, space)).
		and(plain, "] "+percent+" ").column(plain, 26, direction+" "+size(r.Rate())+"/s"+full).and(warning, r.counts(width))
}

// timeLines show the transfer times by size class, on as many lines as that needs.
func (r *Row) timeLines(width int) (list []line) {
	over := "since start"
	if r.Over > 0 {
		over = "of " + short(r.Over)
	}
	head := fmt.Sprintf("  %-19s", "p50/p99 "+over)
	now := line{{dim, head}}
	for _, t := range r.Times {
		if t.Count() == 0 {
			continue
		}
		one := fmt.Sprintf(" %s <%s/<%s", class(t.Most), short(t.Quantile(0.5)), short(t.Quantile(0.99)))
		if t.Count() == t.Coarse {
			one = fmt.Sprintf(" %s %d not timed", class(t.Most), t.Coarse)
		}
		if len(now) > 1 && ansi.StringWidth(now.String()+one) > width {
			list = append(list, now)
			now = text(dim, "%s", strings.Repeat(" ", len(head)))
		}
		now = now.and(plain, one)
	}
	if len(now) == 1 {
		now = now.and(dim, " no transfer ended")
	}
	return append(list, now)
}

func class(most uint64) string {
	if most == 0 {
		return "larger"
	}
	return "≤" + size(float64(most))
}

// transfer is a transfer in flight of an engine.
type transfer struct {
	*stats.Transfer
	agent string
}

// transfers are those in flight of all rows, the oldest first, and how many there are. Engines show a part of many.
func transfers(rows []Row) (list []transfer, all int) {
	for i := range rows {
		if rows[i].Live == nil || rows[i].Error != "" {
			continue
		}
		all += len(rows[i].Transfers) + rows[i].LeftOut
		for k := range rows[i].Transfers {
			list = append(list, transfer{&rows[i].Transfers[k], rows[i].Agent})
		}
	}
	slices.SortStableFunc(list, func(a, b transfer) int { return cmp.Compare(b.Age, a.Age) })
	return list, all
}

func transferHead(width int) line {
	n := fit(width)
	return text(dim, "%-*s%-*sOP    STATE   LEFT            AGE   IDLE  RAILS, REASON", n.peer-1, "AGENT", n.peer, "PEER")
}

func (x *transfer) line(width int) line {
	n := fit(width)
	how := plain
	if seconds(x.Age) >= aged {
		how = warning
	}
	left := size(float64(x.Left)) + "/" + size(float64(x.Bytes))
	return line{}.column(plain, n.peer-1, x.agent).column(plain, n.peer, x.Peer).column(plain, 6, x.Op).column(plain, 8, string(x.State)).column(plain, 16, left).
		column(how, 6, short(seconds(x.Age))).column(how, 6, short(time.Duration(x.Idle))).and(plain, strings.TrimSpace(strings.Join(x.Rails, " ")+" "+x.Reason))
}

// entry is a line of an engine's log.
type entry struct {
	stats.Line
	agent string
}

// warnings are the last lines of all logs, the newest last.
func warnings(rows []Row) (list []entry) {
	for i := range rows {
		if rows[i].Live != nil {
			for _, l := range rows[i].Log {
				list = append(list, entry{l, rows[i].Agent})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b entry) int { return a.Time.Compare(b.Time) })
	return list
}

func (e *entry) line(width int) line {
	how := warning
	if strings.EqualFold(e.Level, "error") {
		how = bad
	}
	return text(dim, "%s ", e.Time.Format(time.TimeOnly)).column(plain, fit(width).peer-1, e.agent).and(how, e.Text)
}
