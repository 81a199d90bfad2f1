package transfer

import (
	"context"
	"fmt"
	"log/slog"

	"gorail/backend/core"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/region"
)

// Config holds what transfers use of their engine.
type Config struct {
	Options *option.Options
	Log     *slog.Logger
	Life    *core.Lifetime
	Core    *core.Core
	Rails   *rails.Set
	Regions *region.Registry
	Woken   func() // called when a transfer becomes active, and none was; it must not wait
}

// Table holds all transfers of an engine. It is safe for concurrent use.
type Table struct {
	Config
	records *Records[*Transfer]
	debug   bool // the log takes debug lines
}

// New makes an empty table.
func New(cfg Config) *Table {
	records := NewRecords[*Transfer]()
	records.Woken = cfg.Woken
	return &Table{Config: cfg, records: records, debug: cfg.Log.Enabled(context.Background(), slog.LevelDebug)}
}

// Len is the number of prepared transfers. ActiveLen is the number of those that may have operations in flight.
func (tab *Table) Len() int       { return tab.records.Len() }
func (tab *Table) ActiveLen() int { return tab.records.ActiveLen() }

// Running is the number of transfers in flight.
func (tab *Table) Running() (n int) {
	tab.records.EachActive(func(r *Record[*Transfer]) bool {
		if r.Value.x.Running() {
			n++
		}
		return true
	})
	return n
}

// Get returns the transfer with that handle.
func (tab *Table) Get(handle uint64) (*Transfer, error) {
	rec, err := tab.records.Get(FromUint64(handle))
	if err != nil {
		return nil, err
	}
	return rec.Value, nil
}

// active returns the matching transfers in flight.
func (tab *Table) active(match func(*Transfer) bool) []*Transfer {
	return tab.matching(func(t *Transfer) bool { return t.x.Running() && match(t) })
}

// matching returns the matching transfers in flight, and those that have ended and wait for their status.
func (tab *Table) matching(match func(*Transfer) bool) []*Transfer {
	recs := tab.records.CollectActive(func(r *Record[*Transfer]) bool { return match(r.Value) })
	list := make([]*Transfer, len(recs))
	for i, r := range recs {
		list[i] = r.Value
	}
	return list
}

// LastError is the last error of a rail that copies GPU memory.
func (t *Transfer) LastError() string {
	for _, rl := range t.tab.Rails.List {
		if v, ok := rl.Rail.(provider.Mapper); ok {
			if why := v.LastError(); why != "" {
				return fmt.Sprintf("rail %s: %s", rl.Name(), why)
			}
		}
	}
	return "the rails in use cannot reach this memory"
}
