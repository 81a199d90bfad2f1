// Package transfer is the requests of an application: prepared, planned, posted, watched, released. What a transfer needs of the session with its
// peer is an interface (Session, Live); what the session tells its transfers is published (Peer.Change).
//
// Locks, in the order in which they may be taken: Transfer.mu, the session's, Peer.mu. The table's and the core's come below.
package transfer

import (
	"context"
	"fmt"
	"log/slog"

	"gorail/backend/core"
	"gorail/backend/lifetime"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/xfer"
)

// Config is what transfers need of their engine.
type Config struct {
	Options *option.Options
	Log     *slog.Logger
	Life    *lifetime.Engine
	Core    *core.Core
	Rails   *rails.Set
	Regions *region.Registry
}

// Table is all transfers of an engine. Safe for concurrent use.
type Table struct {
	Config
	records *xfer.Table[*Transfer]
	debug   bool // the log takes debug lines
}

// New has no transfer.
func New(cfg Config) *Table {
	return &Table{Config: cfg, records: xfer.New[*Transfer](), debug: cfg.Log.Enabled(context.Background(), slog.LevelDebug)}
}

// Len is the number of transfers that are prepared, and ActiveLen of those that may have something in flight.
func (tab *Table) Len() int       { return tab.records.Len() }
func (tab *Table) ActiveLen() int { return tab.records.ActiveLen() }

// Get finds a transfer by its handle.
func (tab *Table) Get(handle uint64) (*Transfer, error) {
	rec, err := tab.records.Get(xfer.FromUint64(handle))
	if err != nil {
		return nil, err
	}
	return rec.Value, nil
}

// active gives the transfers in flight that match.
func (tab *Table) active(match func(*Transfer) bool) []*Transfer {
	recs := tab.records.CollectActive(func(r *xfer.Record[*Transfer]) bool { return r.Value.x.Running() && match(r.Value) })
	list := make([]*Transfer, len(recs))
	for i, r := range recs {
		list[i] = r.Value
	}
	return list
}

// LastError is why a rail could not copy, last.
func (t *Transfer) LastError() string {
	for _, rl := range t.tab.Rails.List {
		if v, ok := rl.Rail.(provider.VRAM); ok {
			if why := v.LastError(); why != "" {
				return fmt.Sprintf("rail %s: %s", rl.Name(), why)
			}
		}
	}
	return "this memory can't be reached over the rails in use"
}
