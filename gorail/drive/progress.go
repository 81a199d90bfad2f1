package drive

import (
	"fmt"
	"io"
	"time"
)

// Progress is a line every few seconds.
type Progress struct {
	Whole bool // all steps are expected before the first: lines say how long the rest takes

	log          io.Writer
	done, all    int
	began, shown time.Time
}

// between is the least time between two lines.
const between = 5 * time.Second

// NewProgress returns a Progress that writes to log.
func NewProgress(log io.Writer) *Progress { return &Progress{log: log} }

// Expect adds steps to those that are expected.
func (p *Progress) Expect(steps int) { p.all += steps }

// Step starts the next step.
func (p *Progress) Step(what string) {
	now := time.Now()
	if p.done++; p.done == 1 {
		p.began = now
	}
	if now.Sub(p.shown) < between {
		return
	}
	left := ""
	if ended := p.done - 1; p.Whole && ended > 0 {
		left = ", " + About(now.Sub(p.began)/time.Duration(ended)*time.Duration(p.all-ended)) + " left"
	}
	p.shown = now
	fmt.Fprintf(p.log, "%d of %d%s: %s\n", p.done, p.all, left, what)
}

// Say prints a line.
func (p *Progress) Say(text string) { fmt.Fprintln(p.log, text) }

// About is a time in words.
func About(d time.Duration) string {
	if d < 100*time.Second {
		return fmt.Sprintf("about %d s", max(1, int(d.Seconds()+0.5)))
	}
	return fmt.Sprintf("about %d minutes", int(d.Minutes()+0.5))
}
