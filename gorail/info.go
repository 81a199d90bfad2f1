package main

import (
	"io"

	"github.com/spf13/cobra"

	"gorail/gorail/cli"
	"gorail/gorail/doctor"
	"gorail/gorail/doctor/machine"
)

func infoCommand() *cobra.Command {
	var params []string
	asJSON := false
	c := &cobra.Command{
		Use:   "info [--param NAME=VALUE] [--json]",
		Short: "Show the rails, GPUs and ways of memory that an agent of this machine would use",
		Long: `Shows on one screen which devices an agent opens and which it leaves out, which rails are nearest to each GPU, and how host and GPU memory
moves to peers on this host and on others. It opens no device and needs no peer. gorail doctor says what is wrong, and the remedy.`,
		Example: "  gorail info\n  gorail info --param provider=tcp",
		Args:    cli.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return info(c.OutOrStdout(), params, asJSON) },
	}
	c.Flags().StringArrayVar(&params, "param", nil, "NAME=VALUE: a parameter of createBackend, as the application gives it; repeatable")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

func info(out io.Writer, params []string, asJSON bool) error {
	given, err := parameters(params)
	if err != nil {
		return err
	}
	i, err := doctor.Look(machine.Here(version, given))
	if err != nil {
		return cli.Usage("%v", err)
	}
	if asJSON {
		return i.JSON(out)
	}
	return i.Text(out)
}
