package study

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/weights"
	"gorail/gorail/study/weights/rank"
)

func weightsStudy() *study {
	var o weights.Options
	return &study{
		name:  "weights",
		short: "Weights from a trainer to inference workers: refits, reposts and registrations",
		long: `Starts a trainer and one to three workers as processes of this host, each with a GPU of its own as long as there are some. The weights of
a model move to all workers again and again: READs, WRITEs, and with three workers by a tree. They lie as tensors of their own, in one arena, and
resharded to another tensor parallelism. UCX does the same beside it.`,
		example: "  gorail study weights --quick\n  gorail study weights --model llama-8b --memory vram --workers 3\n  gorail study weights --memory dram --scale 256",
		title:   "Weights from a trainer to inference workers",
		asked:   "How long does a refit take, and what do its parts cost?",
		add: func(f *pflag.FlagSet) {
			f.IntVar(&o.Workers, "workers", 0, "workers, 1 to 3 (default 1, or one less than there are GPUs)")
			f.IntVar(&o.FanOut, "fan-out", 1, "workers that each process of the tree sends to")
			f.StringSliceVar(&o.Models, "model", nil, "whose weights: "+rank.ModelNames()+" (default the first two; with --smallest the first)")
			f.Uint64Var(&o.Scale, "scale", 0, "each matrix has one of so many of its rows (default 1 on GPUs; 16 in host memory, with --quick 64; with --smallest 1024)")
			f.StringVar(&o.Memory, "memory", "", "dram, vram (default vram if there are two GPUs)")
		},
		run: func(ctx context.Context, e *env.Env, r *result.Result) error { return weights.Run(ctx, e, o, r) },
	}
}

// RankCommand is a process of study weights.
func RankCommand() *cobra.Command {
	return &cobra.Command{Use: rank.Command, Hidden: true, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return rank.Main() }}
}
