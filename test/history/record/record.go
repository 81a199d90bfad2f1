// Package record writes the calls of an agent to its history.
package record

import (
	"gorail/nixlapi"
	"gorail/test/history"
)

// Calls writes calls and their ends. It belongs to one thread.
type Calls struct {
	Log *history.Log
	n   uint64 // number of the latest call
}

// Next is the number of the next call.
func (c *Calls) Next() uint64 { return c.n + 1 }

// Note writes an event. A history that cannot be written is of no use.
func (c *Calls) Note(e history.Event) {
	if err := c.Log.Add(e); err != nil {
		panic(err)
	}
}

// Start writes the begin of a call, and returns its number.
func (c *Calls) Start(e history.Event) uint64 {
	c.n++
	e.Kind, e.Op = history.Call, c.n
	c.Note(e)
	return c.n
}

// Call does a call of the agent that ends when it returns.
func (c *Calls) Call(e history.Event, f func() error) error {
	n := c.Start(e)
	err := f()
	end := history.Event{Kind: history.End, Op: n, Result: ResultOf(nixlapi.StatusOf(err))}
	if err != nil {
		end.Text = err.Error()
	}
	c.Note(end)
	return err
}

// ResultOf is the result that a status stands for.
func ResultOf(s nixlapi.Status) history.Result {
	switch {
	case s == nixlapi.Success:
		return history.OK
	case s == nixlapi.ErrNotFound:
		return history.NotFound
	}
	return history.Failed
}
