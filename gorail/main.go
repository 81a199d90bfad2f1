// Command gorail is the tool beside the plugin: it creates plugin folders, benchmarks backends, checks machines and shows running engines.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

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
	if e, ok := errors.AsType[exitError](err); ok {
		code = e.code
	}
	if err.Error() != "" {
		fmt.Fprintln(os.Stderr, "gorail:", err)
	}
	os.Exit(code)
}

func run(args []string, out, log io.Writer) error {
	root := &cobra.Command{
		Use:           "gorail",
		Short:         "Plugin folders for NIXL, benchmarks of its backends, checks of machines, and a look at running engines",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(versionCommand(), explainCommand(), infoCommand(), pluginsCommand(), benchCommand(), sideCommand(),
		doctorCommand(), doctorChild(), doctorPeer(), study.Command(version), study.NodeCommand())
	root.AddCommand(statsCommand(), topCommand(), metricsCommand()) // of running engines
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(log)
	return root.Execute()
}

// sideCommand is one process of a benchmark. gorail bench starts it.
func sideCommand() *cobra.Command {
	return &cobra.Command{Use: side.Command, Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return side.Main() }}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), "gorail", version) },
	}
}
