// Package study has the commands of gorail study. Each study is a package below: it fills in a result.Result, and this package
// gives it flags, a progress bar, and the files that come out.
package study

import (
	"github.com/spf13/cobra"

	"gorail/gorail/cli"
)

// Command returns gorail study. version is that of gorail.
func Command(version string) *cobra.Command {
	c := &cobra.Command{
		Use:   "study",
		Args:  cobra.ArbitraryArgs,
		RunE:  cli.Parent,
		Short: "Studies: one command asks a question, measures, and makes a page with the answer",
		Long: `A study asks one question about this machine, or about two. It checks first, measures with real NIXL agents, says in words what it
found, and writes one HTML page with tables and plots, and JSON. docs/studies.md shows each study with the figures of a run.`,
	}
	for _, s := range []*study{railsStudy(), kvStudy(), weightsStudy(), peersStudy(), weekStudy()} {
		c.AddCommand(s.command(version))
	}
	return c
}
