package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gorail/gorail/bench/host"
	"gorail/gorail/cli"
	"gorail/gorail/door"
	"gorail/gorail/drive"
	"gorail/gorail/page"
	"gorail/gorail/report"
	"gorail/gorail/side"
)

func benchCommand() *cobra.Command {
	var o benchFlags
	c := &cobra.Command{
		Use:        "bench",
		SuggestFor: []string{"report", "page"},
		Short:      "Measure backends of NIXL with real agents, beside what the machine can do",
		Long: `Drives real NIXL agents through libnixl_capi.so. Each backend runs in processes of its own, which live only during its turn.
Backends and limits (memcpy, process_vm, plain TCP) take turns, several times per run. Ratios are given with their spread. A row with a * was measured while other programs were busy. The timed
loops are in C. Modes: transfer (sizes and batches), small (64 B .. 16 KiB, 1 .. 64 in flight, 1 .. 8 threads), descriptors (1 .. 65,536 of
1 KiB), notify, idle. Flags that nixlbench has, too, have its names; - and _ are the same in a name.`,
		Example: `  gorail bench --compare GORAIL,UCX --shapes 4K,1M,64x4K
  gorail bench --compare GORAIL,UCX+UCX_TLS=tcp --op_type READ --enable_pt
  gorail bench --memory vram --gpus 0,1 --layout llama-8b
  gorail bench --shapes 64K --json run.json --html run.html
  gorail bench --mode small --num_threads 1,4,16 --agents 1,4
  gorail bench --listen other:18515     # on one host; it prints a token. On the other host:
  GORAIL_PEER_TOKEN=TOKEN gorail bench --connect other:18515 --compare GORAIL,UCX`,
		Args: cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.listen != "" {
				l, err := door.Listen(o.listen, c.ErrOrStderr())
				if err != nil {
					return err
				}
				l.Announce("targets for gorail bench --connect")
				return side.Listen(l)
			}
			c.Flags().Visit(func(f *pflag.Flag) {
				value := f.Value.String()
				if strings.HasSuffix(f.Value.Type(), "Slice") {
					value = strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
				}
				o.args = append(o.args, "--"+f.Name+"="+quote(value))
			})
			o.changed = c.Flags().Changed
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // a second Control-C ends the program
			return o.run(ctx, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.SetNormalizeFunc(normal)
	o.add(c)
	return c
}

// aliases are names of nixlbench, and names without its prefixes.
var aliases = map[string]string{"threads": "num_threads"}

// normal makes - and _ the same in the name of a flag.
func normal(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.ReplaceAll(name, "-", "_")
	return pflag.NormalizedName(cmp.Or(aliases[name], name))
}

func (o *benchFlags) run(ctx context.Context, out, log io.Writer) error {
	sinks, err := page.Open(o.Words(), append([]string{"table"}, page.Formats...), func(string) string { return "-" })
	if err != nil {
		return err
	}
	defer page.Discard(sinks)
	c, err := o.config()
	if err != nil {
		return err
	}
	failed := 0
	bar := drive.NewProgress(log)
	bar.Expect(c.Steps())
	bar.Whole = true
	if busy := host.Busy(); busy > host.Limit {
		bar.Say("warning: " + host.Disturbs(busy))
	}
	if takes := c.Estimate(); takes > 0 {
		bar.Say(fmt.Sprintf("%d points: %s", c.Steps(), drive.About(takes)))
	}
	c.Step = bar.Step
	c.Warn = func(subject string, why error) {
		failed++
		bar.Say(fmt.Sprintf("%s: %v", subject, why))
	}
	when := time.Now().UTC()
	r := c.Run(ctx)
	if ctx.Err() != nil {
		if len(r.Samples) == 0 {
			return errors.New("interrupted before anything was measured")
		}
		r.Ended = fmt.Sprintf("interrupted after %d of %d points", len(r.Samples), c.Steps())
	}
	targets := r.Machine
	r.When, r.Command, r.Title, r.Setup, r.Machine = when, "gorail bench "+strings.Join(o.args, " "), o.title, o.setup(c), host.Machine()
	r.Versions = "gorail " + version + ", " + cmp.Or(r.Versions, "no NIXL")
	if targets != "" && targets != r.Machine {
		r.Machine += "; targets: " + targets
	}
	w := page.Of(report.Page(r))
	w["json"] = func(to io.Writer) error { return page.JSON(to, r) }
	w["table"] = func(to io.Writer) error { return report.Text(to, r, o.wide) }
	if err := page.Write(sinks, out, log, w); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted; what was measured until then is written")
	case failed > 0:
		return fmt.Errorf("%d points failed", failed)
	}
	return nil
}
