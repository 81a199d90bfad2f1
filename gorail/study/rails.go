package study

import (
	"context"

	"github.com/spf13/pflag"

	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/rails"
)

func railsStudy() *study {
	var o rails.Options
	return &study{
		name:  "rails",
		short: "Rails: each alone and all together, beside what the links should give, and beside UCX",
		long: `Checks every link first (speed, width, what caps it), then measures each rail alone and all rails: WRITE and READ, host memory and
each GPU, 4 KiB to 1 GiB, beside what the links should give and what UCX gives. It says in words what limits. With --lab it makes shaped rails
between two network namespaces of this host, which needs root.`,
		example: "  gorail study rails --lab rails=2,rate=1gbit --quick\n  gorail study rails --lab rails=2,rate=1gbit/500mbit,delay=500us\n" +
			"  gorail doctor --listen other:18516        # on one host; it prints a token. On the other host:\n  GORAIL_PEER_TOKEN=TOKEN gorail study rails --peer other:18516",
		title: "Rails",
		asked: "What does each rail give, what do all of them give together, and what limits them?",
		peer:  true,
		add: func(f *pflag.FlagSet) {
			f.StringVar(&o.Lab, "lab", "", "rails=N,rate=R,delay=T: shaped rails between two network namespaces of this host; needs root")
		},
		run: func(ctx context.Context, e *env.Env, r *result.Result) error { return rails.Run(ctx, e, o, r) },
	}
}
