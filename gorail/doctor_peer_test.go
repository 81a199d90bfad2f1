package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/gorail/doctor"
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
