package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// port returns a port that was free.
func port(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// etcd starts a server until the end of the test.
func etcd(t *testing.T) (url string, stop func()) {
	path, err := exec.LookPath("etcd")
	if err != nil { // its package starts a service, so tools/setup.sh leaves it to the user
		t.Skip("no etcd: apt-get install etcd-server")
	}
	url, peers := "http://"+port(t), "http://"+port(t)
	c := exec.Command(path, "--data-dir", t.TempDir(), "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peers,
		"--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers, "--log-level", "error")
	require.NoError(t, c.Start())
	stop = func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	t.Cleanup(stop)
	require.Eventually(t, func() bool { return reachEtcd(url) == nil }, time.Minute, 20*time.Millisecond)
	return url, stop
}

// TestBenchEtcd: a real server carries the metadata of all agents of all processes. A server that is away is named before anything starts.
func TestBenchEtcd(t *testing.T) {
	env := needs(t)
	url, stop := etcd(t)
	args := append(small, "--wheel", env.WheelDir, "--etcd", url, "--shapes", "4K", "--agents", "2", "--scheme", "manytoone", "--initiators", "2")
	r := bench(t, args...)
	require.Len(t, r.Samples, 1)
	stop()
	_, _, err := gorail(append([]string{"bench"}, args...)...)
	require.ErrorContains(t, err, "--etcd: no etcd server answers")
}

// TestEtcdURL: what is no server is refused.
func TestEtcdURL(t *testing.T) {
	require.ErrorContains(t, reachEtcd("127.0.0.1:2379"), "want one URL")
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	require.ErrorContains(t, reachEtcd(other.URL), "not an etcd server")
	require.ErrorContains(t, reachEtcd(fmt.Sprintf("http://%s", port(t))), "no etcd server answers")
}
