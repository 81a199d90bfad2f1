package study

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/peers"
	"gorail/gorail/study/peers/crowd"
)

func peersStudy() *study {
	var o peers.Options
	return &study{
		name:  "peers",
		short: "Many peers: the time to connect, what a peer takes, who gets how much, restarts",
		long: `Starts a hub and its peers, several in a process of this host. The hub connects to all of them; then some write to it at once; then all are
killed and started again. The answer is what a peer costs, and whether all get their share.`,
		example: "  gorail study peers --quick\n  gorail study peers --peers 100 --compare UCX\n  gorail study peers --param provider=tcp --param devices=lo",
		title:   "Many peers",
		asked:   "What does a peer cost, and does each get its share?",
		add: func(f *pflag.FlagSet) {
			f.IntVar(&o.Peers, "peers", 0, "peers of the hub (default 1000; with --quick 100)")
			f.IntVar(&o.Processes, "processes", 16, "processes that share them; the hub has one more")
			f.BoolVar(&o.Hosts, "hosts", false, "each process has a network namespace of its own, as on a host of its own (needs root)")
			f.IntVar(&o.Mesh, "mesh", 0, "only the last step: so many agents all meet each other (default: all steps, the last one with 64)")
			f.StringSliceVar(&o.Compare, "compare", nil, "backends that do the same afterwards: UCX")
			f.StringArrayVar(&o.Params, "param", nil, "NAME=VALUE: a parameter of GORAIL; repeatable")
		},
		run: func(ctx context.Context, e *env.Env, r *result.Result) error {
			if e.Effort == env.Smallest && o.Peers == 0 {
				o.Processes = min(o.Processes, 2)
			}
			return peers.Run(ctx, e, o, r)
		},
	}
}

// CrowdCommand is a process of study peers.
func CrowdCommand() *cobra.Command {
	return &cobra.Command{Use: crowd.Command, Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return crowd.Main() }}
}
