package main

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/metrics"
)

// One process serves scrapes and the file, until it is told to end.
func TestMetrics(t *testing.T) {
	to := t.TempDir()
	m := exporter{listen: "127.0.0.1:0", folder: to, every: time.Hour}
	m.collector.Source.Folder = t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lines, w := io.Pipe()
	defer lines.Close()
	ended := make(chan error, 1)
	go func() { ended <- m.run(ctx, log.New(w, "", 0)) }()
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
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(filepath.Join(to, metrics.TextFile))
		return err == nil && bytes.Contains(b, []byte("gorail_engines_left_out 0\n"))
	}, time.Minute, time.Millisecond)
	http.DefaultClient.CloseIdleConnections()
	cancel()
	require.NoError(t, <-ended)
	require.NoFileExists(t, filepath.Join(to, metrics.TextFile))
}

func TestMetricsRefused(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--socket", folder + "/no"}, "no such file or directory"},
		{[]string{"--interval", "10ms"}, "give 1s or more"},
		{[]string{"--listen", ""}, "give --listen HOST:PORT or --textfile DIR"},
		{[]string{"--listen", "127.0.0.1:99999"}, "give another address"},
		{[]string{"--textfile", folder + "/no", "--socket", folder}, "--textfile"},
		{[]string{"--listen", "127.0.0.1:0", "--textfile", folder + "/no", "--socket", folder}, "--textfile"},
	} {
		_, _, err := gorail(append([]string{"metrics"}, c.args...)...)
		require.ErrorContains(t, err, c.says, "%v", c.args)
	}
}
