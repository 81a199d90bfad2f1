// Command gorail is the tool beside the plugin: it creates plugin folders, benchmarks backends, checks machines and shows running engines.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"gorail/gorail/cli"
	"gorail/gorail/side"
	"gorail/gorail/study"
)

// version comes from the file VERSION; the build sets it (-X main.version).
var version = "unknown"

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	if err == nil {
		return
	}
	code := 1
	if e, ok := errors.AsType[cli.Exit](err); ok {
		code = e.Code
	}
	if err.Error() != "" {
		fmt.Fprintln(os.Stderr, "gorail:", err)
	}
	os.Exit(code)
}

func run(args []string, out, log io.Writer) error { return cli.Execute(root(args, out, log)) }

// root is the tool.
func root(args []string, out, log io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "gorail",
		Short:         "Checks of this machine, a look at running engines, benchmarks of NIXL's backends, and plugin folders",
		Version:       version,
		Args:          cobra.ArbitraryArgs,
		RunE:          cli.Parent,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"This machine", []*cobra.Command{infoCommand(), devicesCommand(), doctorCommand(), explainCommand()}},
		{"Running engines", []*cobra.Command{topCommand(), statsCommand(), metricsCommand()}},
		{"Measure", []*cobra.Command{benchCommand(), study.Command(version)}},
		{"Plugin folders", []*cobra.Command{pluginsCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	root.AddCommand(versionCommand(), sideCommand(), doctorChild(), doctorPeer(), study.NodeCommand(), study.RankCommand(), study.CrowdCommand(), study.LifeCommand())
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(log)
	return root
}

// sideCommand is one process of a benchmark. gorail bench starts it.
func sideCommand() *cobra.Command {
	return &cobra.Command{Use: side.Command, Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return side.Main() }}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cli.NoArgs,
		Run:   func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), "gorail", version) },
	}
}
