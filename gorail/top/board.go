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

// window is how many readings the transfer times cover.
const window = 10

// Board has what was read of the engines.
type Board struct {
	Now  time.Time // of the last reading
	Rows []Row
	Err  error // why nothing could be read

	Whole bool // transfer times are those since the start of each engine, not of the last readings

	past  map[string][]*stats.Live // by socket, the oldest first
	heard map[string]time.Time     // last answer, by socket
	peaks map[string]float64       // highest rate of a rail, by socket and rail
}

// Row is one engine.
type Row struct {
	live.Engine               // Live is the last answer, nil if there never was one
	Silent      time.Duration // since the last answer, if Error says why there is none now
	Rates       live.Delta
	Rails       []Rail
	Times       []stats.Times // of the transfers of Over, by size
	Over        time.Duration // 0: since the engine's start
}

// Rail is a rail and its load.
type Rail struct {
	*stats.Rail
	Write, Read float64 // bytes per second
	Full        float64 // nominal speed, or the highest rate that was seen; 0: none yet
	Nominal     bool
}

// Rate is the load of the busier direction.
func (r *Rail) Rate() float64 { return max(r.Write, r.Read) }

// Take takes a reading. Engines that have ended are forgotten.
func (b *Board) Take(engines []live.Engine, err error, now time.Time) {
	past, heard, peaks := map[string][]*stats.Live{}, map[string]time.Time{}, map[string]float64{}
	b.Now, b.Err, b.Rows = now, err, nil
	for _, e := range engines {
		old := b.past[e.Socket]
		row := Row{Engine: e}
		if e.Live == nil {
			heard[e.Socket] = b.heard[e.Socket]
			if len(old) > 0 {
				row.Live = old[len(old)-1]
				row.Silent = now.Sub(b.heard[e.Socket])
			}
		} else {
			heard[e.Socket] = now
			if len(old) > 0 && !old[0].Started.Equal(e.Started) {
				old = nil
			}
			if len(old) > 0 {
				row.Rates = live.Between(old[len(old)-1], e.Live)
			}
			old = append(old, e.Live)
			old = old[max(0, len(old)-window-1):]
		}
		past[e.Socket] = old
		if row.Live != nil {
			row.rails(b.peaks, peaks)
			if b.Whole {
				old = old[len(old)-1:]
			}
			row.times(old[0])
		}
		b.Rows = append(b.Rows, row)
	}
	b.past, b.heard, b.peaks = past, heard, peaks
}

// rails computes the load of each rail.
func (r *Row) rails(before, peaks map[string]float64) {
	for i := range r.Live.Rails {
		one := Rail{Rail: &r.Live.Rails[i]}
		rates := r.Rates.Rails[one.Name]
		one.Write, one.Read = rates.Written, rates.Read
		key := r.Socket + " " + one.Name
		peaks[key] = max(before[key], one.Rate())
		one.Full = peaks[key]
		if one.Mbps > 0 {
			one.Full, one.Nominal = float64(one.Mbps)*1e6/8, true
		}
		r.Rails = append(r.Rails, one)
	}
}

// times adds up the transfer times of all rails since a reading, or since the start if it is the only one.
func (r *Row) times(first *stats.Live) {
	r.Times = merge(nil, r.Live, add)
	if first != r.Live {
		r.Over = r.Live.Now.Sub(first.Now)
		r.Times = merge(r.Times, first, sub)
	}
	slices.SortFunc(r.Times, func(a, b stats.Times) int { return cmp.Compare(a.Most-1, b.Most-1) }) // 0, which has no limit, is the last
}

func add(a, b uint64) uint64 { return a + b }

// sub tolerates counters that were read at different moments.
func sub(a, b uint64) uint64 { return a - min(a, b) }

// merge adds or subtracts the histograms of an engine.
func merge(list []stats.Times, l *stats.Live, op func(a, b uint64) uint64) []stats.Times {
	one := func(t stats.Times) {
		i := slices.IndexFunc(list, func(x stats.Times) bool { return x.Most == t.Most })
		if i < 0 {
			i = len(list)
			list = append(list, stats.Times{Most: t.Most})
		}
		x := &list[i]
		for k, n := range t.Buckets {
			if k == len(x.Buckets) {
				x.Buckets = append(x.Buckets, 0)
			}
			x.Buckets[k] = op(x.Buckets[k], n)
		}
		x.Coarse = op(x.Coarse, t.Coarse)
	}
	for i := range l.Rails {
		for _, t := range l.Rails[i].Times {
			one(t)
		}
	}
	for _, t := range l.Staged.Times {
		one(t)
	}
	return list
}

// Order is what the rows are sorted by.
type Order string

// Orders.
const (
	ByAgent  Order = "agent"
	ByRate   Order = "rate"
	ByOldest Order = "oldest transfer"
	ByErrors Order = "errors"
)

var orders = []Order{ByAgent, ByRate, ByOldest, ByErrors}

// next is the order after o.
func (o Order) next() Order { return orders[(slices.Index(orders, o)+1)%len(orders)] }

// Sorted returns the rows in an order. Engines that do not answer come first: they are what to look at.
func (b *Board) Sorted(o Order) []Row {
	rows := slices.Clone(b.Rows)
	slices.SortStableFunc(rows, func(x, y Row) int {
		return cmp.Or(cmp.Compare(len(y.Error), len(x.Error)), cmp.Compare(y.weight(o), x.weight(o)), strings.Compare(x.title(), y.title()),
			strings.Compare(x.Socket, y.Socket))
	})
	return rows
}

func (r *Row) title() string {
	if r.Live == nil {
		return r.Socket
	}
	return r.Agent
}

func (r *Row) weight(o Order) (w float64) {
	switch {
	case r.Live == nil:
	case o == ByRate:
		return r.Rates.Engine.Written + r.Rates.Engine.Read
	case o == ByOldest && len(r.Transfers) > 0:
		return r.Transfers[0].Age
	case o == ByErrors:
		for i := range r.Rails {
			w += float64(r.Rails[i].Errors + r.Rails[i].Fences)
		}
	}
	return w
}
