package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gorail/cmd/gorail/measure"
	"gorail/cmd/gorail/report"
	"gorail/cmd/gorail/side"
)

func benchCommand() *cobra.Command {
	var o benchFlags
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure backends of NIXL with real agents in two processes, beside what the machine can do",
		Long: `Drives real NIXL agents through libnixl_capi.so. Each backend runs in its own pair of processes, which lives only during its turn.
Backends and limits (memcpy, process_vm, plain TCP) take turns, several times per run. Ratios are given with their spread. The timed
loops are in C. Modes: transfer (sizes and batches), small (64 B .. 16 KiB, 1 .. 64 in flight, 1 .. 8 threads), descriptors (1 .. 65,536 of
1 KiB), notify, idle.`,
		Example: `  gorail bench --compare GORAIL,UCX --shapes 4K,1M,64x4K
  gorail bench --compare GORAIL,UCX+UCX_TLS=tcp --op_type READ --enable_pt
  gorail bench --listen :18515          # on one host, and on the other:
  gorail bench --connect other:18515 --compare GORAIL,UCX`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.listen != "" {
				l, err := net.Listen("tcp", o.listen)
				if err != nil {
					return err
				}
				c.PrintErrf("targets for gorail bench --connect %s\n", l.Addr())
				return side.Listen(l)
			}
			c.Flags().Visit(func(f *pflag.Flag) { o.args = append(o.args, "--"+f.Name+"="+quote(f.Value.String())) })
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return o.run(ctx, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f := c.Flags()
	f.SortFlags = false
	o.add(f)
	return c
}

func (o *benchFlags) run(ctx context.Context, out, log io.Writer) error {
	if outputs[o.output] == nil {
		return fmt.Errorf("--output %q: want table, csv or json", o.output)
	}
	c, err := o.config()
	if err != nil {
		return err
	}
	names := func(limit bool) (out []string) {
		for _, s := range c.Subjects {
			if (s.Backend == "") == limit {
				out = append(out, s.Title)
			}
		}
		return out
	}
	r := &measure.Run{When: time.Now().UTC(), Command: "gorail bench " + strings.Join(o.args, " "), Machine: report.Machine(), Title: o.title,
		Setup: o.setup(c), Repeats: o.repeats, Subjects: names(false), Limits: names(true)}

	failed := 0
	bar := newProgress(log, c.Steps())
	c.Step = bar.step
	c.Warn = func(subject string, why error) {
		failed++
		bar.say(fmt.Sprintf("%s: %v", subject, why))
	}
	r.Samples, r.Pairs, r.Versions = c.Run(ctx)
	bar.end()

	if o.json != "" {
		if err := writeFile(o.json, func(w io.Writer) error { return report.JSON(w, r) }); err != nil {
			return err
		}
	}
	if err := outputs[o.output](out, r); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d points failed", failed)
	}
	return cmp.Or(ctx.Err(), nil)
}

var outputs = map[string]func(io.Writer, *measure.Run) error{"table": report.Text, "csv": report.CSV, "json": report.JSON}

// writeFile creates a file and writes it with f.
func writeFile(path string, f func(io.Writer) error) error {
	w, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(f(w), w.Close())
}
