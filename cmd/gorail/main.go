// Command gorail is the tool beside the plugin: it creates plugin folders and benchmarks backends.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// version comes from the file VERSION; the build sets it (-X main.version).
var version = "unknown"

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "gorail:", err)
		os.Exit(1)
	}
}

func run(args []string, out, log io.Writer) error {
	root := &cobra.Command{
		Use:           "gorail",
		Short:         "Plugin folders for NIXL, benchmarks of its backends, and a look at running engines",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(versionCommand(), pluginsCommand(), benchCommand(), reportCommand(), pageCommand(), sideCommand())
	root.AddCommand(statsCommand(), psCommand(), topCommand(), traceCommand(), metricsCommand()) // of running engines
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(log)
	return root.Execute()
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), "gorail", version) },
	}
}
