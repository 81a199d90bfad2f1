package metrics

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"gorail/gorail/live"
)

func TestListen(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "localhost:0"} {
		l, err := Listen(address)
		require.NoError(t, err, address)
		require.False(t, Open(l.Addr()), address)
		_, err = Listen(l.Addr().String())
		require.ErrorContains(t, err, "give another address (--listen HOST:PORT)")
		l.Close()
	}
	for _, ip := range []string{"0.0.0.0", "::", "10.0.0.1", "fe80::1"} {
		require.True(t, Open(&net.TCPAddr{IP: net.ParseIP(ip)}), ip)
	}
	require.False(t, Open(&net.TCPAddr{IP: net.IPv6loopback}))
}

func TestServe(t *testing.T) {
	folder := t.TempDir()
	serve(t, folder, "1", snapshot("ann", 1))
	l, err := Listen("127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, handler(t, &Collector{Source: live.Source{Folder: folder}})) }()
	for path, want := range map[string]int{"/metrics": http.StatusOK, "/": http.StatusOK, "/other": http.StatusNotFound} {
		r, err := http.Get("http://" + l.Addr().String() + path)
		require.NoError(t, err)
		r.Body.Close()
		require.Equal(t, want, r.StatusCode, path)
	}
	r, err := http.Post("http://"+l.Addr().String()+"/metrics", "text/plain", nil)
	require.NoError(t, err)
	r.Body.Close()
	require.Equal(t, http.StatusMethodNotAllowed, r.StatusCode)
	http.DefaultClient.CloseIdleConnections()
	cancel()
	require.NoError(t, <-ended)
}

// A reader of the file finds it whole at any time. The file goes with its writer.
func TestWriteFiles(t *testing.T) {
	folder, to := t.TempDir(), t.TempDir()
	serve(t, folder, "1", snapshot("ann", 1))
	c := &Collector{Source: live.Source{Folder: folder}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- WriteFiles(ctx, c, to, 2*time.Millisecond) }()
	path, seen := filepath.Join(to, TextFile), map[string]bool{}
	for deadline := time.Now().Add(time.Minute); len(seen) < 5 && time.Now().Before(deadline); {
		b, err := os.ReadFile(path)
		if os.IsNotExist(err) && len(seen) == 0 {
			time.Sleep(time.Millisecond)
			continue
		}
		require.NoError(t, err)
		p := expfmt.NewTextParser(model.UTF8Validation)
		f, err := p.TextToMetricFamilies(bytes.NewReader(b))
		require.NoError(t, err)
		require.EqualValues(t, 10, value(t, f, "gorail_transfers_total", "agent=ann"))
		require.Contains(t, f, "gorail_scrape_duration_seconds")
		seen[string(b)] = true // the duration differs
	}
	require.GreaterOrEqual(t, len(seen), 5)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode().Perm(), "node_exporter has another user")
	cancel()
	require.NoError(t, <-ended)
	left, err := os.ReadDir(to)
	require.NoError(t, err)
	require.Empty(t, left)
	require.ErrorContains(t, WriteFiles(t.Context(), c, filepath.Join(to, "no"), time.Second), "--textfile")
}
