package study

import (
	"context"

	"github.com/spf13/pflag"

	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/transports"
)

func transportsStudy() *study {
	var o transports.Options
	return &study{
		name:  "transports",
		short: "Transports: tcp against what else is there (verbs, EFA, CXI, shared memory), alone and beside a load",
		long: `Measures each fabric of GORAIL between the same pair of processes: latency, rate, CPU seconds a GiB, the time to the first byte, and what a
load on every core leaves. Beside them are UCX and a plain TCP connection. On one host it also runs the example programs of training and serving
(gradient sync, checkpoints, weights) over each fabric.`,
		example: "  gorail study transports --quick\n  gorail doctor --listen other:18516        # on one host; it prints a token. On the other host:\n  GORAIL_PEER_TOKEN=TOKEN gorail study transports --peer other:18516",
		title:   "Transports",
		asked:   "What does another transport than tcp gain between these two processes?",
		peer:    true,
		add: func(f *pflag.FlagSet) {
			f.StringVar(&o.Examples, "examples", "", "folder of the example programs; none: run none (default: beside the plugin's folder, if there)")
		},
		run: func(ctx context.Context, e *env.Env, r *result.Result) error { return transports.Run(ctx, e, o, r) },
	}
}
