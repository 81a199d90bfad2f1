package main

import (
	"fmt"
	"regexp"

	"github.com/spf13/cobra"

	"gorail/backend/errcode"
	"gorail/gorail/cli"
)

// inLine is a code somewhere in a line of the log.
var inLine = regexp.MustCompile(`(?i)\bGR-[0-9]+`)

func explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "explain [CODE | LOG LINE]",
		Short:   "Print cause and remedy of an error code of the log (code=GR-1042), or list all codes",
		Example: "  gorail explain GR-1042\n  gorail explain 'time=... level=WARN msg=\"peer lost\" code=GR-1042'",
		Args:    cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) (codes []string, _ cobra.ShellCompDirective) {
			for _, e := range errcode.List() {
				codes = append(codes, cobra.CompletionWithDesc(e.String(), e.Meaning))
			}
			return codes, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				for _, e := range errcode.List() {
					fmt.Fprintf(c.OutOrStdout(), "%s  %s\n", e, e.Meaning)
				}
				return nil
			}
			e := errcode.Find(args[0])
			if code := inLine.FindString(args[0]); e == nil && code != "" {
				e = errcode.Find(code)
			}
			if e == nil {
				return cli.Usage("no code %q: run gorail explain for the list, or look into the log for code=GR-", args[0])
			}
			fmt.Fprint(c.OutOrStdout(), e.Explain())
			return nil
		},
	}
}
