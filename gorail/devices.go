package main

import (
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"gorail/gorail/cli"
	"gorail/gorail/doctor"
	"gorail/gorail/doctor/machine"
)

type devicesFlags struct {
	plan     bool
	topology string
	rank     int
	ranks    int
	gpu      int
	params   []string
	json     bool
}

func devicesCommand() *cobra.Command {
	var o devicesFlags
	c := &cobra.Command{
		Use:   "devices [--plan] [--topology FILE] [--param NAME=VALUE] [--json]",
		Short: "List the devices of this machine, and plan which of them memory gets",
		Long: `Lists the devices that can be rails, with their places, and those that no agent uses, with the reason. With --plan it also says which rails memory of
each GPU and of each NUMA node gets, and why. It opens no device and needs no peer.`,
		Example: "  gorail devices\n  gorail devices --plan --rank 3 --ranks 8      # the fourth of eight processes of this host\n" +
			"  gorail devices --plan --param max_rails=4\n  gorail devices --plan --topology machine.txt  # a machine that is described",
		Args: cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c, c.OutOrStdout()) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVar(&o.plan, "plan", false, "say which rails regions of memory get, and why")
	f.IntVar(&o.rank, "rank", 0, "one of the processes of the host, from 0; with --ranks. Its GPU is that of its number, in turn, or --gpu")
	f.IntVar(&o.ranks, "ranks", 0, "how many processes of the host share its devices")
	f.IntVar(&o.gpu, "gpu", 0, "only memory of this GPU, and of its NUMA node; from 0, in the order of PCI addresses")
	f.StringVar(&o.topology, "topology", "", "a machine that is described as in backend/topo/testdata/*.txt; a file of the same name with .xml is its NCCL topology\n"+
		"file. A FILE.xml: this machine, with that NCCL topology file")
	f.StringArrayVar(&o.params, "param", nil, "NAME=VALUE: a parameter of createBackend, as the application gives it; repeatable")
	f.BoolVar(&o.json, "json", false, "print one JSON object")
	return c
}

func (o *devicesFlags) run(c *cobra.Command, out io.Writer) error {
	q, err := o.question(c.Flags().Changed)
	if err != nil {
		return err
	}
	given, err := parameters(o.params)
	if err != nil {
		return err
	}
	name, h := "this machine", (*doctor.Host)(nil)
	if o.topology == "" || filepath.Ext(o.topology) == ".xml" {
		if h = machine.Here(version, given); o.topology != "" {
			h.NCCL = o.topology
		}
	} else {
		name = o.topology
		if h, err = doctor.Described(o.topology, os.Environ(), given); err != nil {
			return cli.Usage("--topology: %v", err)
		}
	}
	d, err := doctor.LookAtDevices(name, h, q)
	if err != nil {
		return cli.Usage("%v", err)
	}
	if o.json {
		return d.JSON(out)
	}
	return d.Text(out)
}

// question checks the flags that say what the plan is about.
func (o *devicesFlags) question(given func(flag string) bool) (doctor.Question, error) {
	q := doctor.Question{Regions: o.plan, Rank: o.rank, Ranks: o.ranks, GPU: -1}
	for _, flag := range []string{"rank", "ranks", "gpu"} {
		if given(flag) && !o.plan {
			return q, cli.Usage("--%s is about the plan: add --plan", flag)
		}
	}
	switch {
	case given("rank") != given("ranks"):
		return q, cli.Usage("--rank and --ranks belong together: rank N of R processes of this host")
	case given("ranks") && (o.ranks < 1 || o.ranks > mostRanks):
		return q, cli.Usage("--ranks %d: write a number from 1 to %d", o.ranks, mostRanks)
	case given("rank") && (o.rank < 0 || o.rank >= o.ranks):
		return q, cli.Usage("--rank %d: write a number from 0 to %d", o.rank, o.ranks-1)
	case o.gpu < 0:
		return q, cli.Usage("--gpu %d: write a number from 0", o.gpu)
	case given("gpu"):
		q.GPU = o.gpu
	}
	return q, nil
}

// mostRanks bounds a plan: no host has more processors.
const mostRanks = 4096
