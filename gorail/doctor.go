package main

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"gorail/gorail/cli"
	"gorail/gorail/doctor"
	"gorail/gorail/doctor/machine"
	"gorail/gorail/doctor/peer"
	"gorail/gorail/door"
	"gorail/gorail/study"
)

type doctorFlags struct {
	peer   door.Place
	listen string
	json   bool
	style  doctor.Style
	params []string
}

func doctorCommand() *cobra.Command {
	var o doctorFlags
	c := &cobra.Command{
		Use:   "doctor [--peer HOST:PORT] [--json] [--fix-hints]",
		Short: "Check this machine, and a peer, for what GORAIL needs",
		Long: `Checks software, devices, links, memory and processes with the plugin's own code, and says which devices an engine takes. It needs no
GPU, no peer and no root. Each line is PASS, WARN or FAIL with a remedy; what is wrong comes last. The exit status is 0 without a FAIL, 1 with one, and 2 for wrong
arguments. docs/doctor.md explains every check.`,
		Example: "  gorail doctor --fix-hints\n  gorail doctor --param provider=tcp --param devices=eth1\n" +
			"  gorail doctor --listen other:18516     # on one host; it prints a token. On the other host:\n  GORAIL_PEER_TOKEN=TOKEN gorail doctor --peer other:18516",
		Args: cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.OutOrStdout(), c.ErrOrStderr()) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.Var(&o.peer, "peer", "check the way to the host that runs gorail doctor --listen, too: HOST:PORT#TOKEN, as it prints. Without #TOKEN the variable\n"+door.EnvToken+" has it")
	f.StringVar(&o.listen, "listen", "", "serve gorail doctor --peer of other hosts at this address, to callers with the token that it prints. A port alone is for this host")
	f.BoolVar(&o.json, "json", false, "print one JSON object: {version, checks: [{id, area, status, text, remedy, commands}]}")
	f.BoolVar(&o.style.Hints, "fix-hints", false, "print the commands of each remedy below its line")
	f.BoolVarP(&o.style.Quiet, "quiet", "q", false, "print WARN and FAIL alone")
	f.StringArrayVar(&o.params, "param", nil, "NAME=VALUE: a parameter of createBackend, as the application gives it; repeatable")
	return c
}

func (o *doctorFlags) run(out, log io.Writer) error {
	params, err := parameters(o.params)
	if err != nil {
		return err
	}
	if o.peer.Given() && o.listen != "" {
		return cli.Usage("--peer and --listen exclude each other")
	}
	if o.listen != "" {
		l, err := door.Listen(o.listen, log)
		if err != nil {
			return err
		}
		l.Announce("serving gorail doctor --peer")
		return peer.Listen(l, params)
	}
	h := machine.Here(version, params)
	r := doctor.Run(h)
	if o.peer.Given() {
		peer.Check(r, h, version, o.peer)
	}
	o.style.Colour = cli.Coloured(out)
	write := func() error { return r.Text(out, o.style) }
	if o.json {
		write = func() error { return r.JSON(out) }
	}
	if err := write(); err != nil {
		return err
	}
	if r.Failed() {
		return cli.Exit{Code: 1}
	}
	return nil
}

// parameters parses the values of --param.
func parameters(list []string) (map[string]string, error) {
	params := map[string]string{}
	for _, p := range list {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, cli.Usage("--param %q: write NAME=VALUE", p)
		}
		params[name] = value
	}
	return params, nil
}

// doctorPeer is a process of gorail doctor --listen.
func doctorPeer() *cobra.Command {
	return &cobra.Command{Use: peer.Command, Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return peer.Main(version, study.Services()) }}
}

// doctorChild is the second process of gorail doctor.
func doctorChild() *cobra.Command {
	return &cobra.Command{Use: machine.Command, Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return machine.Child() }}
}
