package metrics

import (
	"context"
	"net"
	"net/http"
	"testing"

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
