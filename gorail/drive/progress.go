package drive

import (
	"fmt"
	"io"
	"time"
)

// Progress is a line every few seconds.
type Progress struct {
	log       io.Writer
	done, all int
	shown     time.Time
}

// between is the least time between two lines.
const between = 5 * time.Second

// NewProgress returns a Progress that writes to log.
func NewProgress(log io.Writer) *Progress { return &Progress{log: log} }

// Expect adds steps to those that are expected.
func (p *Progress) Expect(steps int) { p.all += steps }

// Step starts the next step.
func (p *Progress) Step(what string) {
	p.done++
	if now := time.Now(); now.Sub(p.shown) >= between {
		p.shown = now
		fmt.Fprintf(p.log, "%d of %d: %s\n", p.done, p.all, what)
	}
}

// Say prints a line.
func (p *Progress) Say(text string) { fmt.Fprintln(p.log, text) }
