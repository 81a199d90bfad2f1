package study

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/week"
	"gorail/gorail/study/week/life"
)

func weekStudy() *study {
	var o week.Options
	return &study{
		name:  "week",
		short: "A week in an hour: transfers, peers, restarts, and what processes hold",
		long: `Does what a week does, in an hour on two cores: ten million transfers whose bytes are compared, 100,000 peers that are added and removed,
10,000 agents with names of their own, 1,000 restarts of a process. Memory, descriptors, threads and files are curves, and the page says of each whether it is flat.`,
		example: "  gorail study week --quick\n  gorail study week --scale 10 --over tcp",
		title:   "A week in an hour",
		asked:   "Does what the processes hold stay flat?",
		add: func(f *pflag.FlagSet) {
			f.IntVar(&o.Scale, "scale", 0, "divide all numbers by this (default 1; with --quick 20)")
			f.StringSliceVar(&o.Over, "over", []string{week.Default, "tcp"}, "ways of the bytes, one after the other: default (the plugin chooses), or values of option provider")
			f.StringArrayVar(&o.Params, "param", nil, "NAME=VALUE: a parameter of GORAIL; repeatable")
		},
		run: func(ctx context.Context, e *env.Env, r *result.Result) error { return week.Run(ctx, e, o, r) },
	}
}

// LifeCommand is a process of study week.
func LifeCommand() *cobra.Command {
	return &cobra.Command{Use: life.Command, Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return life.Main() }}
}
