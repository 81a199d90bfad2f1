package main

import (
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
