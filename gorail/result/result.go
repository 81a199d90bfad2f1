// Package result is what a study has found, as plain data: checks, words, tables and plots. It measures nothing and writes nothing.
package result

import (
	"math"
	"time"
)

// Version is the version of the JSON form. It grows when a field changes its meaning or goes away.
const Version = 2

// Result is one run of a study.
type Result struct {
	Version  int
	Study    string // "small"
	Title    string
	Asked    string // the question, in words
	When     time.Time
	Took     time.Duration
	Command  string
	Machine  string
	Versions string   `json:",omitempty"`
	Setup    string   `json:",omitempty"` // settings that all points share
	Ended    string   `json:",omitempty"` // why the study ended early; "": complete
	Checks   []Check  `json:",omitempty"` // what was checked before anything was measured
	Findings []string // the answer, in words
	Failed   []string `json:",omitempty"` // what could not be measured, and why
	Sections []Section
	Methods  []string // how the numbers were made
}

// Check is one line of what was checked first.
type Check struct {
	Status, What, Text string // PASS, WARN or FAIL
	Remedy             string `json:",omitempty"`
}

// Section is a part of the page: words, tables and plots side by side.
type Section struct {
	Title  string
	Text   string  `json:",omitempty"`
	Tables []Table `json:",omitempty"`
	Plots  []Plot  `json:",omitempty"`
}

// Table has rows whose first Keys cells name the row.
type Table struct {
	Title   string
	Keys    int
	Columns []string
	Rows    [][]Cell
}

// Cell is a number or a word. An empty cell has neither.
type Cell struct {
	Value *float64 `json:",omitempty"`
	Text  string   `json:",omitempty"`
}

// Word is a cell with text.
func Word(text string) Cell { return Cell{Text: text} }

// Num is a cell with a number; the empty cell for NaN and infinities.
func Num(v float64) Cell {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return Cell{}
	}
	return Cell{Value: &v}
}

// Plot has lines over a common axis. It is left out while no line has two points.
type Plot struct {
	Title, X, Y string
	LogX, LogY  bool
	Bytes       bool // X is a size: ticks at powers of two
	Lines       []Line
}

// Line is one curve.
type Line struct {
	Name   string
	XY     [][2]float64
	Dashed bool // a limit or an expectation, not a measurement of a backend
}

// Add appends a point unless a coordinate is NaN or infinite.
func (l *Line) Add(x, y float64) {
	if s := x + y; !math.IsNaN(s) && !math.IsInf(s, 0) {
		l.XY = append(l.XY, [2]float64{x, y})
	}
}
