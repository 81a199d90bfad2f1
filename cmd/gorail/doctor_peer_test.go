package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/cmd/gorail/doctor"
	"gorail/cmd/gorail/doctor/peer"
	"gorail/cmd/gorail/side"
	"gorail/test/testenv"
)

// serveDoctor starts gorail doctor --listen and returns its address.
func serveDoctor(t *testing.T, env testenv.Env, vars ...string) string {
	t.Helper()
	c := exec.Command(built(t, env), "doctor", "--listen", "127.0.0.1:0")
	c.Env = append(os.Environ(), vars...)
	log, err := c.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	lines := bufio.NewReader(log)
	first, err := lines.ReadString('\n')
	require.NoError(t, err)
	go func() { _, _ = lines.WriteTo(os.Stderr) }()
	_, addr, found := strings.Cut(strings.TrimSpace(first), "--peer ")
	require.True(t, found, first)
	return addr
}

// TestDoctorPeer: two processes over loopback. A WRITE and a READ over tcp are verified.
func TestDoctorPeer(t *testing.T) {
	env := needs(t)
	vars := []string{"NIXL_PLUGIN_DIR=" + folder(t, env), "GORAIL_PROVIDER=tcp"}
	addr := serveDoctor(t, env, vars...)
	r, code := examine(t, env, vars, "--peer", addr)
	require.Zero(t, code, "%+v", firstFail(r))
	for _, id := range []string{"peer-address", "peer-connect", "peer-version", "peer-names", "peer-clock", "peer-host", "peer-control", "peer-data", "peer-mtu", "peer-transfer"} {
		got := find(r, id)
		require.NotEmpty(t, got, id)
		require.Equal(t, doctor.Pass, got[0].Status, "%+v", got)
	}
	require.Regexp(t, `^tcp/lo to tcp/lo: WRITE \d+\.\d\d GB/s, READ \d+\.\d\d GB/s, bytes compared`, find(r, "peer-transfer")[0].Text)
}

// hostile is a process of a listener whose answers attack the terminal, or the memory, of who asks.
type hostile struct{ huge bool }

func (hostile) Hello(_ side.HelloArgs, out *side.HelloOut) error {
	*out = side.HelloOut{Protocol: side.Protocol, Machine: evil}
	return nil
}

func (h hostile) Facts(_ side.None, out *peer.Facts) error {
	*out = peer.Facts{Version: evil, NIXL: evil, Names: map[string]bool{evil: true}, Addrs: []string{evil}, Err: evil}
	if h.huge {
		out.Err = strings.Repeat("x", 300<<20)
	}
	return nil
}

func (hostile) Now(_ side.None, out *time.Time) error { return errors.New(evil) }

const evil = "\x1b]0;title\x07\x1b[2J\u202egone"

// TestDoctorHostilePeer: what a peer says comes to the terminal without control characters, and a huge answer takes a bounded memory.
func TestDoctorHostilePeer(t *testing.T) {
	env := needs(t)
	for _, h := range []hostile{{}, {huge: true}} {
		c := exec.Command(built(t, env), "doctor", "--peer", serveAs(t, h))
		c.Env = append(os.Environ(), "GORAIL_PROVIDER=tcp")
		out, err := c.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "FAIL peer-")
		require.NotContains(t, string(out), "\x1b")
		require.NotContains(t, string(out), "\u202e")
		if h.huge {
			require.Contains(t, string(out), "64 MiB")
			require.Less(t, c.ProcessState.SysUsage().(*syscall.Rusage).Maxrss, int64(600<<10), "KiB")
		}
	}
}
