package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"gorail/backend/stats"
	"gorail/gorail/live"
)

const socketHelp = "folder of the engines' sockets (default: $XDG_RUNTIME_DIR/gorail and /run/gorail; option stats_socket)"

// sourceFlags adds the flags that say which engines to ask.
func sourceFlags(c *cobra.Command, s *live.Source) {
	c.Flags().StringVar(&s.Folder, "socket", "", socketHelp)
	c.Flags().StringVar(&s.Agent, "agent", "", "only the engines of this agent")
}

func statsCommand() *cobra.Command {
	var s live.Source
	asJSON, watch := false, false
	every := time.Second
	c := &cobra.Command{
		Use:   "stats [--watch] [--json]",
		Short: "Counters of the running engines of this host",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			before := map[string]*stats.Live{}
			return repeat(c.Context(), watch, every, func(ctx context.Context) error {
				engines, err := read(ctx, s)
				if err != nil {
					return err
				}
				if asJSON {
					return json.NewEncoder(c.OutOrStdout()).Encode(engines)
				}
				err = live.WriteStats(c.OutOrStdout(), engines, before)
				clear(before)
				for _, e := range engines {
					before[e.Socket] = e.Live
				}
				if watch {
					fmt.Fprintln(c.OutOrStdout())
				}
				return err
			})
		},
	}
	sourceFlags(c, &s)
	c.Flags().BoolVar(&asJSON, "json", false, "one line of JSON: an array of engines (docs/stats.md)")
	c.Flags().BoolVar(&watch, "watch", false, "again each --interval, with rates")
	c.Flags().DurationVar(&every, "interval", every, "of --watch")
	return c
}

func psCommand() *cobra.Command {
	var s live.Source
	c := &cobra.Command{
		Use:   "ps",
		Short: "Transfers in flight of the running engines of this host",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			engines, err := read(c.Context(), s)
			if err != nil {
				return err
			}
			return live.WriteTransfers(c.OutOrStdout(), engines)
		},
	}
	sourceFlags(c, &s)
	return c
}

func traceCommand() *cobra.Command {
	var s live.Source
	seconds, output := 10.0, ""
	c := &cobra.Command{
		Use:   "trace [--seconds 10] -o trace.json",
		Short: "Transfers, fences and stalls of some seconds, for chrome://tracing and ui.perfetto.dev",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if seconds <= 0 || seconds > 600 {
				return fmt.Errorf("--seconds %g: give a number above 0 and up to 600", seconds)
			}
			traces, errs := s.Trace(c.Context(), time.Duration(seconds*float64(time.Second)))
			if len(traces) == 0 && errs == nil {
				errs = errNone(s)
			}
			if len(traces) == 0 {
				return errs
			}
			if errs != nil {
				c.PrintErrln("left out:", errs)
			}
			err := create(output, func(w io.Writer) error { return live.WriteChrome(w, traces) })
			if err == nil {
				for _, t := range traces {
					c.PrintErrf("%s, process %d: %d transfers, %d lines of the log; %d transfers and %d lines did not fit\n", t.Agent, t.PID, len(t.Transfers),
						len(t.Lines), t.Lost, t.LostLines)
				}
			}
			return err
		},
	}
	sourceFlags(c, &s)
	c.Flags().Float64Var(&seconds, "seconds", seconds, "length of the trace")
	c.Flags().StringVarP(&output, "output", "o", "trace.json", "file to write")
	return c
}

// read asks the engines. It is an error if there are none.
func read(ctx context.Context, s live.Source) ([]live.Engine, error) {
	engines, err := s.Read(ctx)
	if err == nil && len(engines) == 0 {
		err = errNone(s)
	}
	return engines, err
}

func errNone(s live.Source) error {
	if s.Agent != "" {
		return fmt.Errorf("no running engine of agent %q: see gorail stats for all", s.Agent)
	}
	return fmt.Errorf("no running engine found: engines of other users and containers have their sockets elsewhere (--socket), and option stats_socket=off has none")
}

// repeat calls f once, or until SIGINT.
func repeat(ctx context.Context, again bool, every time.Duration, f func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	for {
		if err := f(ctx); err != nil || !again {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(every, 10*time.Millisecond)):
		}
	}
}

// create writes a file whole, or not at all.
func create(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename
	if err = write(f); err == nil {
		err = f.Chmod(0o644)
	}
	if no := f.Close(); err == nil {
		err = no
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}
