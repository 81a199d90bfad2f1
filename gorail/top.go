package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"gorail/gorail/cli"
	"gorail/gorail/live"
	"gorail/gorail/top"
)

func topCommand() *cobra.Command {
	var s live.Source
	once, every := false, time.Second
	c := &cobra.Command{
		Use:        "top [--once]",
		SuggestFor: []string{"ps", "trace"},
		Short:      "Watch the running engines of this host",
		Long: "Shows rates of rails, what is known of the bytes that peers move, transfer times, the oldest transfers in flight and the last warnings of all engines of this host, again each\n" +
			"--interval. Keys: arrows and pages scroll, q quits. NO_COLOR takes the colours. --once writes plain text instead.",
		Args: cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if every < top.LeastInterval {
				return cli.Usage("--interval %v: give %v or more", every, top.LeastInterval)
			}
			ask := func(ctx context.Context) ([]live.Engine, error) { return read(ctx, s) }
			if once {
				return top.Once(c.Context(), c.OutOrStdout(), ask, every)
			}
			return top.Run(c.Context(), os.Stdin, os.Stdout, os.Environ(), ask, every)
		},
	}
	sourceFlags(c, &s)
	c.Flags().BoolVar(&once, "once", false, "write one reading as text and end; its rates are those of one --interval")
	c.Flags().DurationVar(&every, "interval", every, "time between readings")
	return c
}
