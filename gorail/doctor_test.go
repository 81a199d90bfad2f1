package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/doctor"
	"gorail/test/testenv"
)

// built is the tool as the build made it.
func built(t *testing.T, env testenv.Env) string {
	path := filepath.Join(env.PluginDir, "gorail")
	_, err := os.Stat(path)
	require.NoError(t, err, "make build")
	return path
}

// examine runs the built tool, and returns its report and exit status.
func examine(t *testing.T, env testenv.Env, vars []string, args ...string) (*doctor.Report, int) {
	t.Helper()
	c := exec.Command(built(t, env), append([]string{"doctor", "--json"}, args...)...)
	c.Env = append(os.Environ(), vars...)
	var log strings.Builder
	c.Stderr = &log
	out, err := c.Output()
	code := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		code = e.ExitCode()
	} else {
		require.NoError(t, err)
	}
	r := &doctor.Report{}
	require.NoError(t, json.Unmarshal(out, r), "%s%s", out, log.String())
	return r, code
}

func find(r *doctor.Report, id string) (out []doctor.Check) {
	for _, c := range r.Checks {
		if c.ID == id {
			out = append(out, c)
		}
	}
	return out
}

func firstFail(r *doctor.Report) doctor.Check {
	for _, c := range r.Checks {
		if c.Status == doctor.Fail {
			return c
		}
	}
	return doctor.Check{}
}

// TestDoctor: the built tool finds this machine well. A NIXL agent loads the plugin, and a second process reads memory.
func TestDoctor(t *testing.T) {
	env := needs(t)
	began := time.Now()
	r, code := examine(t, env, []string{"NIXL_PLUGIN_DIR=" + folder(t, env)})
	require.Zero(t, code, "%+v", firstFail(r))
	require.Equal(t, doctor.SchemaVersion, r.Version)
	for _, id := range []string{"plugin", "version", "plugin-dir", "process-vm", "engine", "nixl"} {
		got := find(r, id)
		require.NotEmpty(t, got, id)
		require.Equal(t, doctor.Pass, got[len(got)-1].Status, "%+v", got)
	}
	require.NotContains(t, find(r, "version")[0].Text, "does not say")
	require.Contains(t, find(r, "plugin-dir")[0].Text, "UCX")
	t.Logf("%d checks in %v", len(r.Checks), time.Since(began).Round(time.Millisecond))
}

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
