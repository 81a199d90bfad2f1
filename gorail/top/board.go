// Package top shows the running engines of a host on a terminal, again and again, or once as text.
package top

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"gorail/backend/stats"
	"gorail/gorail/live"
)

// Board has what was read of the engines.
type Board struct {
	Now  time.Time // of the last reading
	Rows []Row
	Err  error // why nothing could be read

	heard map[string]time.Time // last answer, by socket
}

// Row is one engine.
type Row struct {
	live.Engine               // Live is the last answer, nil if there never was one
	Silent      time.Duration // since the last answer, if Error says why there is none now
	Rates       live.Delta
}

// Take takes a reading. Engines that have ended are forgotten. Those that do not answer come first: they are what to look at.
func (b *Board) Take(engines []live.Engine, err error, now time.Time) {
	before, heard := map[string]*stats.Live{}, map[string]time.Time{}
	for i := range b.Rows {
		before[b.Rows[i].Socket] = b.Rows[i].Live
	}
	b.Now, b.Err, b.Rows = now, err, nil
	for _, e := range engines {
		row, old := Row{Engine: e}, before[e.Socket]
		switch {
		case e.Live != nil:
			heard[e.Socket] = now
			row.Rates = live.Between(old, e.Live)
		case old != nil:
			heard[e.Socket] = b.heard[e.Socket]
			row.Live, row.Silent = old, now.Sub(b.heard[e.Socket])
		}
		b.Rows = append(b.Rows, row)
	}
	b.heard = heard
	slices.SortStableFunc(b.Rows, func(x, y Row) int { return cmp.Compare(len(y.Error), len(x.Error)) })
}

// times are the transfer times of all rails and of staged transfers since the engine's start, by size; those without a limit are the last.
func (r *Row) times() (list []stats.Times) {
	add := func(t stats.Times) {
		i := slices.IndexFunc(list, func(x stats.Times) bool { return x.Most == t.Most })
		if i < 0 {
			i = len(list)
			list = append(list, stats.Times{Most: t.Most})
		}
		x := &list[i]
		x.Coarse += t.Coarse
		x.Buckets = append(x.Buckets, make([]uint64, max(0, len(t.Buckets)-len(x.Buckets)))...)
		for k, n := range t.Buckets {
			x.Buckets[k] += n
		}
	}
	for i := range r.Live.Rails {
		for _, t := range r.Live.Rails[i].Times {
			add(t)
		}
	}
	for _, t := range r.Live.Staged.Times {
		add(t)
	}
	slices.SortFunc(list, func(a, b stats.Times) int { return cmp.Compare(a.Most-1, b.Most-1) })
	return list
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

// entry is a line of an engine's log.
type entry struct {
	stats.Line
	agent string
}

// warnings are the last lines of all logs, the newest first.
func warnings(rows []Row) (list []entry) {
	for i := range rows {
		if rows[i].Live != nil {
			for _, l := range rows[i].Log {
				list = append(list, entry{l, rows[i].Agent})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b entry) int { return cmp.Or(b.Time.Compare(a.Time), strings.Compare(a.agent, b.agent)) })
	return list
}
