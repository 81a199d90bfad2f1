package main

import (
	"context"
	"io"
	"log"
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/gorail/metrics"
)

// TestMetrics: a process serves scrapes until it is told to end.
func TestMetrics(t *testing.T) {
	c := &metrics.Collector{}
	c.Source.Folder = t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lines, w := io.Pipe()
	defer lines.Close()
	ended := make(chan error, 1)
	go func() { ended <- export(ctx, c, "127.0.0.1:0", log.New(w, "", 0)) }()
	b := make([]byte, 1000)
	n, err := lines.Read(b)
	require.NoError(t, err)
	url := regexp.MustCompile(`http://127\.0\.0\.1:\d+/metrics`).Find(b[:n])
	require.NotNil(t, url, "%s", b[:n])
	r, err := http.Get(string(url))
	require.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	r.Body.Close()
	require.NoError(t, err)
	require.Contains(t, string(body), "gorail_engines_left_out 0\n")
	http.DefaultClient.CloseIdleConnections()
	cancel()
	require.NoError(t, <-ended)
}

func TestMetricsRefused(t *testing.T) {
	folder := t.TempDir()
	for says, args := range map[string][]string{
		"no such file or directory": {"--socket", folder + "/no"},
		"give another address":      {"--socket", folder, "--listen", "127.0.0.1:99999"},
	} {
		_, _, err := gorail(append([]string{"metrics"}, args...)...)
		require.ErrorContains(t, err, says, "%v", args)
	}
}
