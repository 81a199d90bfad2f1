package main

import (
	"errors"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/drive"
	"gorail/test/skip"
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
	if err != nil {
		err = errors.New("no etcd: apt-get install etcd-server (tools/test-all.sh unpacks it)")
		if testing.Short() { // its package starts a service, so tools/setup.sh leaves it to the user
			t.Skip(err)
		}
		skip.OrFail(t, err)
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
	require.Eventually(t, func() bool { return drive.ReachEtcd(url) == nil }, time.Minute, 20*time.Millisecond)
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

// TestBenchEtcdDies: the server dies while two connected processes transfer. They go on, and end. The next processes would need the server:
// the error names it, and what was measured before is kept.
func TestBenchEtcdDies(t *testing.T) {
	env := needs(t)
	url, stop := etcd(t)
	c := config(t, env)
	c.Points, c.Repeats, c.Etcd = c.Points[:2], 2, url
	steps := 0
	c.Step = func(string) {
		if steps++; steps == 2 {
			stop()
		}
	}
	var said []string
	c.Warn = func(_ string, why error) { said = append(said, why.Error()) }
	r := c.Run(t.Context())
	t.Log(said)
	require.Len(t, r.Samples, 3)
	for _, s := range r.Samples[:2] {
		require.Empty(t, s.Failed)
		require.True(t, s.Verified)
	}
	require.Contains(t, r.Samples[2].Failed, "etcd server "+url+": no etcd server answers")
}
