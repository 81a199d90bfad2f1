package drive

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Progress is a bar on a terminal, and elsewhere a line every few seconds.
type Progress struct {
	log   io.Writer
	bar   *progressbar.ProgressBar // nil: no terminal
	done  int
	all   int
	shown time.Time
}

// between is the least time between two lines without a terminal.
const between = 5 * time.Second

// NewProgress returns a Progress that writes to log.
func NewProgress(log io.Writer) *Progress {
	p := &Progress{log: log}
	if f, ok := log.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions(0, progressbar.OptionSetWriter(f), progressbar.OptionShowCount(), progressbar.OptionFullWidth(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish())
	}
	return p
}

// Expect adds steps to those that are expected.
func (p *Progress) Expect(steps int) {
	p.all += steps
	if p.bar != nil {
		p.bar.ChangeMax(p.all)
	}
}

// Step starts the next step.
func (p *Progress) Step(what string) {
	p.done++
	if p.bar != nil {
		p.bar.Describe(what)
		_ = p.bar.Set(min(p.done, p.all))
		return
	}
	if now := time.Now(); now.Sub(p.shown) >= between {
		p.shown = now
		fmt.Fprintf(p.log, "%d of %d: %s\n", p.done, p.all, what)
	}
}

// Say prints a line without breaking the bar.
func (p *Progress) Say(text string) {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintln(p.log, text)
}

// End removes the bar.
func (p *Progress) End() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
