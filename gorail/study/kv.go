package study

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gorail/gorail/bench/layout"
	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/kv"
	"gorail/gorail/study/kv/campaign"
	"gorail/gorail/study/kv/node"
)

func kvStudy() *study {
	var o kv.Options
	return &study{
		name:  "kv",
		short: "KV caches of a serving cluster: the time from a computed prompt to its last block",
		long: `Starts prefill and decode agents as processes of this host, with --peer the decode agents on that host, and lets requests arrive at random. Each moves the KV cache of a prompt from a
prefill to a decode node: by WRITE or READ, whole or layer by layer. The answer is the distribution of the time to the last block. --chaos
makes faults instead, one after the other, and says what each did to requests of the victim and of others. It gives each node a host of its
own (a network namespace) if it runs as root.`,
		example: "  gorail study kv --quick\n  gorail study kv --prefill 2 --decode 4 --model llama-8b --tokens 1024\n" +
			"  GORAIL_PEER_TOKEN=TOKEN gorail study kv --peer other:18516 --chaos kill,restart\n  gorail study kv --chaos campaign --prefill 4 --decode 4 --compare UCX\n  gorail study kv --backend UCX --json ucx.json",
		peer:  true,
		title: "KV caches of a serving cluster",
		asked: "How long after a prompt is computed does the decode node have the last block of its KV cache?",
		add: func(f *pflag.FlagSet) {
			f.IntVar(&o.Prefill, "prefill", 0, "prefill nodes (default 2)")
			f.IntVar(&o.Decode, "decode", 0, "decode nodes (default 2)")
			f.StringSliceVar(&o.Models, "model", nil, "whose KV cache: "+layout.ModelNames()+" (default: all; with --quick two)")
			f.IntVar(&o.Tokens, "tokens", 0, "tokens of a prompt (default 512; with --quick 256)")
			f.DurationVar(&o.Compute, "compute", 0, "time to compute a prompt (default 50ms)")
			f.Float64Var(&o.Rate, "rate", 0, "requests a second (default: half of what single requests allow)")
			f.StringSliceVar(&o.Chaos, "chaos", nil, "faults: "+campaign.All+" (all), or some of "+strings.Join(campaign.Names(), ", ")+" (--prefill and --decode: default 4)")
			f.Uint64Var(&o.Seed, "seed", 1, "--chaos: chooses the victims")
			f.StringVar(&o.Backend, "backend", "GORAIL", "backend, as NIXL names its plugin")
			f.StringSliceVar(&o.Compare, "compare", nil, "--chaos: backends that get the same faults afterwards: UCX")
			f.StringArrayVar(&o.Params, "param", nil, "NAME=VALUE: a parameter of the backend; repeatable")
		},
		run: func(ctx context.Context, e *env.Env, r *result.Result) error { return kv.Run(ctx, e, o, r) },
	}
}

// NodeCommand is a process of study kv.
func NodeCommand() *cobra.Command {
	return &cobra.Command{Use: node.Command, Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return node.Main() }}
}

// Services are what a process of gorail doctor --listen does for studies of other hosts, by the names of the services.
func Services() map[string]any { return map[string]any{node.Service: node.Remote()} }
