package python

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/host"
	"gorail/test/fabric"
	"gorail/test/skip"
	"gorail/test/testenv"
)

// TestRosterForked: an agent with more devices than max_rails is in the roster of its host until its process dies, although a child of fork
// lives on with all descriptors that the process did not have closed.
func TestRosterForked(t *testing.T) {
	env, folder := testenv.Need(t), t.TempDir()
	skip.OrFail(t, env.CheckPython())
	if env.Backend != "GORAIL" {
		t.Skip("stock UCX")
	}
	cmd := exec.Command(env.Python, "roster.py", env.Backend)
	cmd.Env = append(os.Environ(), "NIXL_PLUGIN_DIR="+env.PluginDir, "PYTHONDONTWRITEBYTECODE=1", "GORAIL_LIBFABRIC_PATH="+fabric.Build(t), "GORAIL_MAX_RAILS=1",
		"GORAIL_LOCAL_DIR="+folder)
	cmd.Env = append(cmd.Env, fabric.Env("efa", 4, 1)...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	child := 0
	for lines := bufio.NewScanner(out); child == 0 && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "@child %d", &child)
	}
	require.Positive(t, child, "the agent has begun")
	defer func() { _ = syscall.Kill(child, syscall.SIGKILL) }()

	roster, err := host.OpenRoster(folder, 0, core.CloseInForks)
	require.NoError(t, err)
	defer roster.Close()
	others := func() []host.Entry {
		list, err := roster.Others()
		require.NoError(t, err)
		return list
	}
	list := others()
	require.Len(t, list, 1)
	require.Equal(t, fmt.Sprintf("agent %q, process %d", "alice", cmd.Process.Pid), list[0].Text)
	require.Len(t, list[0].Weights, 1, "%v", list)
	for _, w := range list[0].Weights {
		require.Equal(t, 1.0, w)
	}

	require.NoError(t, cmd.Process.Kill())
	for end := time.Now().Add(time.Minute); len(others()) > 0; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "the dead agent is gone from the roster")
	}
	require.NoError(t, syscall.Kill(child, 0), "its child lives")
}
