package main

import (
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress is a bar on a terminal. Elsewhere it prints only messages.
type progress struct {
	log io.Writer
	bar *progressbar.ProgressBar // nil: no terminal
}

func newProgress(log io.Writer, steps int) *progress {
	p := &progress{log: log}
	if f, ok := log.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions(steps, progressbar.OptionSetWriter(f), progressbar.OptionShowCount(), progressbar.OptionFullWidth(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish())
	}
	return p
}

// step starts the next point.
func (p *progress) step(what string) {
	if p.bar != nil {
		p.bar.Describe(what)
		_ = p.bar.Add(1)
	}
}

// say prints a line without breaking the bar.
func (p *progress) say(text string) {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintln(p.log, text)
}

func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
