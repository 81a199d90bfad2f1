package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gorail/gorail/live"
)

// Least size of the screen that shows everything. A smaller one shows a part.
const (
	leastPanes = 14 // lines, for the panes at the bottom
	mostPane   = 8  // lines of a pane
)

// screen is what the user chose.
type screen struct {
	width, height int
	order         Order
	transfers     bool // all transfers in flight in place of the engines
	help          bool
	offset        int // lines that the list is scrolled by
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
	l := text(title, "gorail top  %s  ", b.Now.Format(time.TimeOnly)).and(plain, fmt.Sprintf("%d engines%s", len(b.Rows), host))
	if len(b.Rows) == 1 {
		l[1].text = "1 engine" + live.Printable(host)
	}
	if silent > 0 {
		l = l.and(bad, fmt.Sprintf("  %d without an answer", silent))
	}
	return l
}

var help = []string{
	"q, ctrl+c     quit",
	"s             sort by agent, rate, oldest transfer, errors",
	"t             all transfers in flight, or the engines",
	"up, down      scroll; also k and j, page up and page down, home",
	"?             this help, or back",
	"",
	"Bars show the busier direction of a rail (W: WRITEs, R: READs) against its",
	"nominal speed, or against the highest rate that was seen (peak). A rail counts",
	"what its own engine moves: transfers into an engine count at the peer.",
	"",
	"p50/p99: upper bounds of the times of the transfers that ended in the last ten",
	"readings, by size.  e: errors  f: fences  r: retries, since the start",
	"green: up    yellow: degraded, or in flight for 10s    red: down, or no answer",
}

// body is the list of the screen.
func (s *screen) body(b *Board, rows []Row) (list []line) {
	switch {
	case s.help:
		for _, h := range help {
			list = append(list, text(plain, "%s", h))
		}
		return list
	case b.Err != nil:
		return []line{text(bad, "%v", b.Err)}
	case s.transfers:
		return transferLines(rows, s.width)
	}
	return engines(rows, s.width)
}

func transferLines(rows []Row, width int) []line {
	all, n := transfers(rows)
	list := []line{transferHead(width)}
	for i := range all {
		list = append(list, all[i].line(width))
	}
	if n > len(all) {
		list = append(list, text(dim, "and %d more", n-len(all)))
	}
	return list
}

// panes are the oldest transfers and the last warnings, of n lines each and a head.
func panes(rows []Row, n, width int) []line {
	all, count := transfers(rows)
	list := []line{text(title, "OLDEST OF %d TRANSFERS IN FLIGHT", count)}
	for i := range min(n, len(all)) {
		list = append(list, all[i].line(width))
	}
	list = append(list, make([]line, n+1-len(list))...)
	log := warnings(rows)
	list = append(list, text(title, "LAST WARNINGS"))
	for i := max(0, len(log)-n); i < len(log); i++ {
		list = append(list, log[i].line(width))
	}
	return append(list, make([]line, 2*(n+1)-len(list))...)
}

// lines are the lines of the screen, one for each row of the terminal. They keep the offset within the list.
func (s *screen) lines(b *Board) []line {
	rows := b.Sorted(s.order)
	var below []line
	if s.height >= leastPanes && !s.transfers && !s.help && b.Err == nil {
		below = panes(rows, min(mostPane, (s.height-2)/7), s.width)
	}
	list := s.body(b, rows)
	space := max(1, s.height-2-len(below))
	s.offset = max(0, min(s.offset, len(list)-space))
	rest := max(0, len(list)-space-s.offset)
	list = list[s.offset:]
	list = append(slices.Clone(list[:min(space, len(list))]), make([]line, max(0, space-len(list)))...)

	foot := text(dim, "q quit  s sort: %s  t transfers  ? help", s.order)
	if rest > 0 || s.offset > 0 {
		foot = foot.and(warning, fmt.Sprintf("  %d lines above, %d below", s.offset, rest))
	}
	list = append(append([]line{summary(b)}, list...), below...)
	return append(list[:max(0, min(len(list), s.height-1))], foot)
}

// paint is the whole screen.
func (s *screen) paint(b *Board) string {
	var out []string
	for _, l := range s.lines(b) {
		out = append(out, l.paint(s.width))
	}
	return strings.Join(out, "\n")
}
