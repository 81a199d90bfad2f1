package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"gorail/gorail/cli"
	"gorail/gorail/live"
	"gorail/gorail/page"
)

const socketHelp = "folder of the engines' sockets (default: $XDG_RUNTIME_DIR/gorail and /run/gorail; option stats_socket)"

// sourceFlags adds the flags that say which engines to ask.
func sourceFlags(c *cobra.Command, s *live.Source) {
	c.Flags().StringVar(&s.Folder, "socket", "", socketHelp)
	c.Flags().StringVar(&s.Agent, "agent", "", "only the engines of this agent")
}

func statsCommand() *cobra.Command {
	var s live.Source
	c := &cobra.Command{
		Use:   "stats",
		Short: "Everything that the running engines of this host count, as JSON",
		Args:  cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			engines, err := read(c.Context(), s)
			if err != nil {
				return err
			}
			return page.JSON(c.OutOrStdout(), engines)
		},
	}
	sourceFlags(c, &s)
	return c
}

// read asks the engines. It is an error if there are none.
func read(ctx context.Context, s live.Source) ([]live.Engine, error) {
	engines, err := s.Read(ctx)
	if err != nil || len(engines) > 0 {
		return engines, err
	}
	if s.Agent != "" {
		return nil, fmt.Errorf("no running engine of agent %q: see gorail stats for all", s.Agent)
	}
	return nil, fmt.Errorf("no running engine found: engines of other users and containers have their sockets elsewhere (--socket), and option stats_socket=off has none")
}
