package study

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gorail/gorail/cli"
	"gorail/gorail/door"
	"gorail/gorail/drive"
	"gorail/gorail/page"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
)

// flags are common to all studies.
type flags struct {
	quick, smallest      bool
	peer                 door.Place
	wheel, cuda, plugins string
	repeats              int
	time                 time.Duration
	page.Flags
	args string // as the user gave them
}

// study is one study: its words, and the function that fills in a result.
type study struct {
	name, short, long, example string
	title, asked               string
	peer                       bool // takes --peer
	add                        func(*pflag.FlagSet)
	run                        func(context.Context, *env.Env, *result.Result) error
}

// command is the study as a command.
func (s *study) command(version string) *cobra.Command {
	var o flags
	c := &cobra.Command{
		Use: s.name, Short: s.short, Long: s.long, Example: s.example, Args: cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			c.Flags().Visit(func(f *pflag.Flag) { o.args += " --" + f.Name + "=" + strings.Trim(f.Value.String(), "[]") })
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			go func() {
				<-ctx.Done()
				stop() // a second Control-C ends the program
			}()
			return s.all(ctx, &o, version, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	c.Flags().SortFlags = false
	if s.add != nil {
		cli.Group(c.Flags(), "What is measured", s.add)
	}
	cli.Group(c.Flags(), "How long", func(f *pflag.FlagSet) {
		f.BoolVar(&o.quick, "quick", false, "fewer points and repeats")
		f.BoolVar(&o.smallest, "smallest", false, "a few points for some milliseconds: shows that the study works")
		f.IntVar(&o.repeats, "repeats", 0, "pairs of processes for each subject (default as the study chooses)")
		f.DurationVar(&o.time, "time", 0, "time for each point and subject (default as the study chooses)")
	})
	cli.Group(c.Flags(), "Where", func(f *pflag.FlagSet) {
		if s.peer {
			f.Var(&o.peer, "peer", "the host that runs gorail doctor --listen has the targets: HOST:PORT#TOKEN, as it prints. Without #TOKEN the variable "+door.EnvToken+" has it (default: all processes on this host)")
		}
		f.StringVar(&o.wheel, "wheel", "", "site-packages with a NIXL wheel (default NIXL_WHEEL_DIR, the tool's own, what python3 imports)")
		f.StringVar(&o.cuda, "cuda", "", "of several NIXL wheels in one folder, take the one for this CUDA version: 12, 13")
		f.StringVar(&o.plugins, "plugins", "", "plugin folder for all backends (default GORAIL's own, and the wheel's)")
	})
	cli.Group(c.Flags(), "Output", func(f *pflag.FlagSet) {
		o.Add(f, nil, "json, md, html: to gorail-study-"+s.name+".html and so on, or to a named file: html=a.html; - is standard output: md=- (default html,json)")
	})
	cli.Values(c, "output", page.Formats...)
	cli.Values(c, "cuda", "12", "13")
	return c
}

// all runs a study from the flags to the files. Whatever ends the study, what was measured is written.
func (s *study) all(ctx context.Context, o *flags, version string, out, log io.Writer) error {
	words := o.Words()
	if len(words) == 0 {
		words = []string{"html", "json"}
	}
	sinks, err := page.Open(words, page.Formats, func(format string) string { return "gorail-study-" + s.name + "." + format })
	if err != nil {
		return err
	}
	defer page.Discard(sinks)
	e := &env.Env{Version: version, Plugins: o.plugins, Peer: o.peer, Repeats: o.repeats, Time: o.time, Progress: drive.NewProgress(log)}
	if o.quick {
		e.Effort = env.Quick
	}
	if o.smallest {
		e.Effort = env.Smallest
	}
	if err := e.Find(o.wheel, o.cuda); err != nil {
		return err
	}
	if !e.Has("GORAIL") {
		return fmt.Errorf("no libplugin_GORAIL.so in %s; choose a folder with --plugins", e.PluginDir("GORAIL"))
	}
	if err := e.Reach(); err != nil {
		return err
	}
	r := &result.Result{Study: s.name, Title: s.title, Asked: s.asked, Command: "gorail study " + s.name + o.args}
	e.Describe(r)
	began := time.Now()
	fmt.Fprintf(log, "%s: %s\n", s.name, s.asked)
	err = s.run(ctx, e, r)
	r.Took = time.Since(began)
	switch {
	case ctx.Err() != nil:
		r.Ended = "interrupted"
	case err != nil:
		r.Ended = err.Error()
	}
	if len(r.Sections) == 0 { // nothing was measured
		if err == nil && len(r.Failed) > 0 {
			err = errors.New("nothing could be measured")
		}
		if ctx.Err() != nil {
			return errors.New("interrupted before anything was measured")
		}
		return err
	}
	if e.Effort == env.Smallest {
		for i, f := range r.Findings {
			r.Findings[i] = "No finding: " + f
		}
		r.Findings = slices.Insert(r.Findings, 0, "This is the smallest run: it shows that the study works. A point takes some milliseconds, so its figures are no findings.")
	}
	for _, c := range r.Checks {
		if c.What == env.QuietName && c.Status != "PASS" {
			r.Findings = slices.Insert(r.Findings, 0, "Take these numbers with care: "+c.Text+".")
		}
	}
	if !slices.ContainsFunc(sinks, func(s page.Sink) bool { return s.Path == "-" }) {
		for _, f := range r.Findings {
			fmt.Fprintf(out, "- %s\n", f)
		}
	}
	if failed := page.Write(sinks, out, log, page.Of(r)); failed != nil {
		return failed
	}
	if err == nil && ctx.Err() == nil && e.Lost > 0 {
		err = fmt.Errorf("%d points of GORAIL could not be measured: the page says why", e.Lost)
	}
	if ctx.Err() != nil {
		return errors.New("interrupted; what was measured until then is written")
	}
	return err
}
