package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"gorail/backend/errcode"
)

func explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "explain [CODE]",
		Short:   "Print cause and remedy of an error code of the log (code=GR-1042), or list all codes",
		Example: "  gorail explain GR-1042",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				for _, e := range errcode.List() {
					fmt.Fprintf(c.OutOrStdout(), "%s  %s\n", e, e.Meaning)
				}
				return nil
			}
			e := errcode.Find(args[0])
			if e == nil {
				return fmt.Errorf("no code %q: run gorail explain for the list, or look into the log for code=GR-", args[0])
			}
			fmt.Fprint(c.OutOrStdout(), e.Explain())
			return nil
		},
	}
}
