package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"gorail/gorail/metrics"
)

const leastInterval = time.Second

func metricsCommand() *cobra.Command {
	var m exporter
	c := &cobra.Command{
		Use:   "metrics [--listen 127.0.0.1:9400] [--textfile DIR]",
		Short: "Show the running engines of this host to Prometheus",
		Long: "Answers scrapes of Prometheus at /metrics. Each scrape asks all engines of this host. One such process serves a host (docs/stats.md).\n" +
			"With --textfile it writes " + metrics.TextFile + " for node_exporter instead, and listens only if --listen is given, too.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if m.every < leastInterval {
				return fmt.Errorf("--interval %v: give %v or more", m.every, leastInterval)
			}
			if m.folder != "" && !c.Flags().Changed("listen") {
				m.listen = ""
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return m.run(ctx, log.New(c.ErrOrStderr(), "", log.LstdFlags))
		},
	}
	c.Flags().StringVar(&m.collector.Source.Folder, "socket", "", socketHelp)
	c.Flags().StringVar(&m.listen, "listen", "127.0.0.1:9400", "address for scrapes; there is no authentication, so keep to loopback or an internal network")
	c.Flags().StringVar(&m.folder, "textfile", "", "folder of node_exporter's textfile collector")
	c.Flags().DurationVar(&m.every, "interval", 15*time.Second, "of --textfile")
	return c
}

// exporter is what `gorail metrics` runs.
type exporter struct {
	collector      metrics.Collector
	listen, folder string
	every          time.Duration
}

// run serves until ctx ends, or until one of its parts fails.
func (m *exporter) run(ctx context.Context, l *log.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.collector.Log = l.Printf
	if _, err := m.collector.Source.Sockets(); err != nil {
		return err
	}
	if m.listen == "" && m.folder == "" {
		return errors.New("nothing to do: give --listen HOST:PORT or --textfile DIR")
	}
	var parts []func() error
	if m.listen != "" {
		h, err := metrics.Handler(&m.collector, l)
		if err != nil {
			return err
		}
		listener, err := metrics.Listen(m.listen)
		if err != nil {
			return err
		}
		l.Printf("scrapes: http://%s/metrics", listener.Addr())
		if metrics.Open(listener.Addr()) {
			l.Printf("warning: other hosts may read %s without authentication: names of agents, peers' traffic, devices. "+
				"Listen on a loopback address, or let only Prometheus connect", listener.Addr())
		}
		parts = append(parts, func() error { return metrics.Serve(ctx, listener, h) })
	}
	if m.folder != "" {
		parts = append(parts, func() error { return metrics.WriteFiles(ctx, &m.collector, m.folder, m.every) })
	}
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() {
			ended <- part()
			cancel()
		}()
	}
	var errs []error
	for range parts {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}
