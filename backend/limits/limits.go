// Package limits lists what bounds the resources that peers take, and counts how often each bound took effect. A peer
// here holds our token: it may open sessions and use memory of ours, and need not be honest.
//
// The list is the only one. docs/limits.md is made from it. An allocation on behalf of peers carries the mark
// //limit:NAME, and tests compare the marks with the list.
package limits

import "sync/atomic"

// Limit is the number of a row of List.
type Limit int

// Row is one bound.
type Row struct {
	Name     string // as in marks and counters
	Resource string // what peers take
	Where    string // the file with the mark, below backend/
	Bound    string // how much, and of whom: of a session, of a source address, of an engine
	Beyond   string // what becomes of a peer that wants more
	Option   string // sets the bound; empty: Why says why it is constant
	Why      string // reason of a constant
	Counter  string // path in stats_file; empty: Beyond says how the bound shows
	Test     string // package below backend/ and name of the test with a peer that wants more
}

// Counts are the counters of the rows whose Counter is "limits." and their name. The zero value is ready. A nil Counts
// counts nothing. Safe for concurrent use.
type Counts struct{ hits [len(List)]atomic.Uint64 }

// Hit counts that a bound took effect.
func (c *Counts) Hit(l Limit) { c.Add(l, 1) }

// Add counts that a bound took effect n times.
func (c *Counts) Add(l Limit, n uint64) {
	if c != nil {
		c.hits[l].Add(n)
	}
}

// Read returns the counters by name, also those that are 0.
func (c *Counts) Read() map[string]uint64 {
	m := make(map[string]uint64)
	for i := range List {
		if r := &List[i]; r.Counter == "limits."+r.Name {
			m[r.Name] = c.hits[i].Load()
		}
	}
	return m
}
