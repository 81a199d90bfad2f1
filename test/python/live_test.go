package python

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/stats"
	"gorail/test/skip"
	"gorail/test/testenv"
)

// watched starts watched.py and returns when its first WRITE is done.
func watched(t *testing.T, env testenv.Env, how string, setenv ...string) (c *exec.Cmd, stdin io.Closer) {
	t.Helper()
	c = exec.Command(env.Python, "watched.py", env.Backend, how)
	c.Env = append(append(os.Environ(), "NIXL_PLUGIN_DIR="+env.PluginDir, "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1"), setenv...)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { in.Close(); _ = c.Wait() })
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "@writes" {
	}
	require.NoError(t, lines.Err())
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return c, in
}

func tool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	b, err := exec.Command(testenv.Tool(), args...).CombinedOutput()
	return string(b), err
}

// TestLive: the tool sees real agents of NIXL: both engines and their bytes. stats_file is written while the agent runs, with the names of
// process and agent in its name.
func TestLive(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	dir := t.TempDir()
	folder := filepath.Join(dir, "sockets")
	c, stdin := watched(t, env, "plain", "GORAIL_PROVIDER=tcp", "GORAIL_DEVICES=lo", "GORAIL_STATS_SOCKET="+folder,
		"GORAIL_STATS_FILE="+filepath.Join(dir, "%a-%p.json"), "GORAIL_STATS_INTERVAL=100ms")
	out, err := tool(t, "stats", "--socket", folder)
	require.NoError(t, err, out)
	var engines []struct {
		stats.Live
		Error string
	}
	require.NoError(t, json.Unmarshal([]byte(out), &engines), out)
	require.Len(t, engines, 2)
	ann := engines[0]
	require.Equal(t, "ann/1", ann.Agent)
	require.Equal(t, c.Process.Pid, ann.PID)
	require.Positive(t, ann.Rails[0].BytesWritten)
	require.Positive(t, ann.Rails[0].Times[0].Count())
	out, err = tool(t, "stats", "--socket", folder, "--agent", "ann/1")
	require.NoError(t, err, out)
	require.Contains(t, out, "tcp/lo")
	out, err = tool(t, "top", "--once", "--socket", folder)
	require.NoError(t, err, out)
	require.Contains(t, out, "ann/1")

	file := filepath.Join(dir, fmt.Sprintf("ann_1-%d.json", c.Process.Pid))
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(file)
		var s stats.Snapshot
		return err == nil && json.Unmarshal(b, &s) == nil && s.Rails[0].BytesWritten > 0
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, stdin.Close())
	require.NoError(t, c.Wait())
	out, err = tool(t, "stats", "--socket", folder)
	require.Error(t, err)
	require.Contains(t, out, "no running engine found")
}

// TestTerm: SIGTERM ends a program as without GORAIL, also if the program handles it. Nothing is done at its exit.
func TestTerm(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	for _, how := range []string{"plain", "handler"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "stats.json")
			c, _ := watched(t, env, how, "GORAIL_PROVIDER=sm", "GORAIL_STATS_FILE="+file)
			require.NoError(t, c.Process.Signal(syscall.SIGTERM))
			err := c.Wait()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			if how == "plain" {
				require.Equal(t, syscall.SIGTERM, exit.Sys().(syscall.WaitStatus).Signal())
			} else {
				require.Equal(t, 7, exit.ExitCode())
			}
			require.NoFileExists(t, file) // no engine was closed
		})
	}
}
