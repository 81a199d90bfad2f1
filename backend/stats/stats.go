// Package stats holds the counters of one engine: atomic, named once, read as a snapshot.
//
// Counters only grow. The per-completion ones are kept in C while a transfer runs and added here in bulk.
package stats

import (
	"encoding/json"
	"io"
	"maps"
	"sync/atomic"
)

// Kind is the sort of call that crossed the C/Go boundary. The order mirrors GR_CROSS_* of fastpath/gr_core.h.
type Kind int

// The kinds of crossings.
const (
	Prep Kind = iota
	Post
	Check
	Notifs
	Other
	Kinds // how many there are
)

var kindNames = [Kinds]string{"prep", "post", "check", "notifs", "other"}

// String is the name in the snapshot: "prep", "post", ...
func (k Kind) String() string {
	if k < 0 || k >= Kinds {
		return "unknown"
	}
	return kindNames[k]
}

// Counters of one engine. The zero value is ready; any goroutine may add at any time. It must not be copied.
type Counters struct {
	BytesWritten  atomic.Uint64 // bytes of WRITE transfers proved placed
	BytesRead     atomic.Uint64 // bytes of READ transfers that arrived
	Transfers     atomic.Uint64 // transfers that ended well
	Failed        atomic.Uint64 // transfers that ended in an error
	Cancelled     atomic.Uint64 // transfers released or cancelled in flight
	Descriptors   atomic.Uint64 // descriptors prepared, before coalescing
	WorkRequests  atomic.Uint64 // RMA work requests posted
	Completions   atomic.Uint64 // completions taken, failed ones included
	Errors        atomic.Uint64 // completions with an error
	Retries       atomic.Uint64 // work requests posted again after an error
	Again         atomic.Uint64 // posts that met -EAGAIN
	NotifsIn      atomic.Uint64 // notifications handed to the application
	NotifsOut     atomic.Uint64 // notifications accepted for sending
	NotifsRefused atomic.Uint64 // genNotif calls refused because notif_queue was full
	Duplicates    atomic.Uint64 // notification frames dropped as duplicates
	Rejected      atomic.Uint64 // control connections closed: unknown, wrong token, wrong version
	Fences        atomic.Uint64 // fences asked for
	PeersLost     atomic.Uint64 // peers that died or went silent
	PeersReady    atomic.Uint64 // hellos that ended well

	CToGo [Kinds]atomic.Uint64 // crossings from C into Go
	GoToC [Kinds]atomic.Uint64 // crossings from Go into C
}

// each calls f with every counter's name.
func (c *Counters) each(f func(name string, v *atomic.Uint64)) {
	f("bytes_written", &c.BytesWritten)
	f("bytes_read", &c.BytesRead)
	f("transfers", &c.Transfers)
	f("transfers_failed", &c.Failed)
	f("transfers_cancelled", &c.Cancelled)
	f("descriptors", &c.Descriptors)
	f("work_requests", &c.WorkRequests)
	f("completions", &c.Completions)
	f("completion_errors", &c.Errors)
	f("retries", &c.Retries)
	f("eagain", &c.Again)
	f("notifs_in", &c.NotifsIn)
	f("notifs_out", &c.NotifsOut)
	f("notifs_refused", &c.NotifsRefused)
	f("notif_duplicates", &c.Duplicates)
	f("connections_rejected", &c.Rejected)
	f("fences", &c.Fences)
	f("peers_lost", &c.PeersLost)
	f("peers_ready", &c.PeersReady)
	for k := range Kinds {
		f("c_to_go_"+k.String(), &c.CToGo[k])
		f("go_to_c_"+k.String(), &c.GoToC[k])
	}
}

// Snapshot is every counter by name, read one after the other: single values are exact, sums across them are not.
type Snapshot map[string]uint64

// Snapshot reads all counters, zeros included.
func (c *Counters) Snapshot() Snapshot {
	s := Snapshot{}
	c.each(func(name string, v *atomic.Uint64) { s[name] = v.Load() })
	return s
}

// Since gives what was counted after the earlier snapshot, counters that stood still left out.
func (s Snapshot) Since(earlier Snapshot) Snapshot {
	d := maps.Clone(s)
	for name, v := range earlier {
		if d[name] -= v; d[name] == 0 {
			delete(d, name)
		}
	}
	maps.DeleteFunc(d, func(_ string, v uint64) bool { return v == 0 })
	return d
}

// WriteJSON writes the snapshot as one indented JSON object with sorted names.
func (s Snapshot) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(s)
}
