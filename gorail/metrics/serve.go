package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	mostScrapes = 8 // at a time; they share one reading of the engines
	slow        = 10 * time.Second
)

// Handler answers scrapes with what the collector finds. errors get what a scrape could not show.
func Handler(c *Collector, errorLog promhttp.Logger) (http.Handler, error) {
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: mostScrapes,
		CoalesceGather: true, ErrorLog: errorLog}))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "gorail metrics: the engines of this host are at /metrics\n")
	})
	return mux, nil
}

// Listen listens for scrapes.
func Listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if _, wrong := errors.AsType[*net.AddrError](err); wrong {
		return nil, fmt.Errorf("--listen %q: give another address, HOST:PORT", address)
	} else if err != nil {
		return nil, fmt.Errorf("%w: give another address (--listen HOST:PORT)", err)
	}
	return l, nil
}

// Open reports that other hosts may connect to an address.
func Open(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return !ok || !tcp.IP.IsLoopback()
}

// Serve answers scrapes until ctx ends.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{Handler: h, ReadTimeout: slow, WriteTimeout: slow, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.Background(), slow)
	defer cancel()
	err := s.Shutdown(last)
	if no := <-ended; err == nil && !errors.Is(no, http.ErrServerClosed) {
		err = no
	}
	return err
}
