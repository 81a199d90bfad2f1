// Command gorail is the tool beside the plugin: it creates plugin folders and benchmarks backends.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "gorail:", err)
		os.Exit(1)
	}
}

func run(args []string, out, log io.Writer) error {
	root := &cobra.Command{
		Use:           "gorail",
		Short:         "Plugin folders for NIXL, and benchmarks of its backends",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(pluginsCommand(), benchCommand(), reportCommand(), pageCommand(), sideCommand())
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(log)
	return root.Execute()
}
