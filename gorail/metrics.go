package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"gorail/gorail/cli"
	"gorail/gorail/metrics"
)

func metricsCommand() *cobra.Command {
	var collector metrics.Collector
	listen := ""
	c := &cobra.Command{
		Use:   "metrics [--listen 127.0.0.1:9400]",
		Short: "Show the running engines of this host to Prometheus",
		Long:  "Answers scrapes of Prometheus at /metrics. Each scrape asks all engines of this host. One such process serves a host (docs/stats.md).",
		Args:  cli.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return export(ctx, &collector, listen, log.New(c.ErrOrStderr(), "", log.LstdFlags))
		},
	}
	c.Flags().StringVar(&collector.Source.Folder, "socket", "", socketHelp)
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:9400", "address for scrapes; there is no authentication, so keep to loopback or an internal network")
	return c
}

// export serves scrapes until ctx ends.
func export(ctx context.Context, c *metrics.Collector, listen string, l *log.Logger) error {
	c.Log = l.Printf
	if _, err := c.Source.Sockets(); err != nil {
		return err
	}
	h, err := metrics.Handler(c, l)
	if err != nil {
		return err
	}
	listener, err := metrics.Listen(listen)
	if err != nil {
		return err
	}
	l.Printf("scrapes: http://%s/metrics", listener.Addr())
	if metrics.Open(listener.Addr()) {
		l.Printf("warning: other hosts may read %s without authentication: names of agents, peers' traffic, devices. "+
			"Listen on a loopback address, or let only Prometheus connect", listener.Addr())
	}
	return metrics.Serve(ctx, listener, h)
}
