package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/worker"
)

// TestFabricMissing: the first fabric of option provider has no device. The log warns, although tcp replaces the fabric.
func TestFabricMissing(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, first := range []string{"efa", "cxi", "verbs"} {
		a := start(t, "a", params("provider", first+",tcp"))
		says(t, a.Worker, "level=WARN", `msg="fabric not used"`, "fabric="+first, "reason=", "take "+first+" out of option provider")
		require.NoError(t, a.Exit())
	}
	a := start(t, "b", params("provider", "tcp"))
	require.NoError(t, a.Close())
	require.NotContains(t, a.Output(), "fabric not used")
}

// TestUnknownNames: an unknown parameter is an error that names the nearest option. Parameters of other backends, which clients pass to
// whatever backend they were told to use, are taken or ignored with one line. An unknown GORAIL_ variable is a warning with the nearest
// variable, once in a process.
func TestUnknownNames(t *testing.T) {
	t.Parallel()
	env := ours(t)
	w := process(t, worker.Options{Env: env, Setenv: []string{"GORAIL_DEVICE=lo", "GORAIL_TEST_THIS=1", "GORAIL_LOG=info"}})
	for name, near := range map[string]string{"device": "devices", "max_rail": "max_rails", "num_worker": ""} {
		_, err := w.TryAgent(worker.AgentConfig{Name: "a", Backend: env.Backend, Params: map[string]string{name: "1"}})
		require.Error(t, err)
		says(t, w, "level=ERROR", "no option is called", name)
		if near != "" {
			says(t, w, "level=ERROR", "no option is called", name+" (did you mean "+near+"?)")
		}
	}
	d := agent(w, env, "d", params("num_workers", "4", "num_threads", "2", "ucx_error_handling_mode", "none", "split_batch_size", "1024"))
	says(t, w, "level=INFO", "parameters without a GORAIL equivalent ignored", `names="[num_workers ucx_error_handling_mode]"`)
	require.NoError(t, d.Close())
	agent(w, env, "b")
	c := agent(w, env, "c", params("devices", "lo"))
	says(t, w, "level=WARN", "unknown environment variable", "GORAIL_DEVICE (did you mean GORAIL_DEVICES?)")
	require.NoError(t, c.Close())
	n := 0
	for _, line := range logged(w) {
		if holds(line, []string{"unknown environment variable"}) {
			n++
		}
	}
	require.Equal(t, 1, n, w.Output())
}

// TestStatsFileNoFolder: a stats_file in a missing folder is an error of createBackend.
func TestStatsFileNoFolder(t *testing.T) {
	t.Parallel()
	env := ours(t)
	w := process(t, worker.Options{Env: env})
	_, err := w.TryAgent(worker.AgentConfig{Name: "a", Backend: env.Backend, Params: map[string]string{"stats_file": filepath.Join(t.TempDir(), "none", "s.json")}})
	require.Error(t, err)
	says(t, w, "level=ERROR", "option stats_file=", "no such file or directory")
}

// TestLogFile: log lines go to the file of log_file, which has the process's number in its name, as JSON with log_format, and errors have their code. A file that
// cannot be opened is an error of createBackend.
func TestLogFile(t *testing.T) {
	t.Parallel()
	env := ours(t)
	dir := t.TempDir()
	w := process(t, worker.Options{Env: env, Setenv: []string{"GORAIL_LOG_FILE=" + filepath.Join(dir, "gorail-%p.log"), "GORAIL_LOG_FORMAT=json", "GORAIL_LOG=info"}})
	file := filepath.Join(dir, fmt.Sprintf("gorail-%d.log", w.Pid()))
	a := agent(w, env, "a")
	require.Error(t, a.GenNotif("nobody", []byte("n")))
	_, err := w.TryAgent(worker.AgentConfig{Name: "b", Backend: env.Backend, Params: map[string]string{"xfer_timeout": "soon"}})
	require.Error(t, err)
	_, err = w.TryAgent(worker.AgentConfig{Name: "c", Backend: env.Backend, Params: map[string]string{"log_file": filepath.Join(file, "none")}})
	require.Error(t, err)
	require.NoError(t, a.Close())

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	codes, messages := map[string]string{}, map[string]map[string]any{}
	for line := range strings.Lines(string(text)) {
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &fields), line)
		require.Equal(t, "GORAIL", fields["backend"])
		message, _ := fields["msg"].(string)
		messages[message] = fields
		if code, _ := fields["code"].(string); code != "" {
			codes[code] = message
		}
	}
	require.Contains(t, messages, "rails")
	require.Equal(t, "a", messages["rails"]["agent"])
	require.NotEmpty(t, messages["rails"]["version"])
	require.Contains(t, codes["GR-1004"], "xfer_timeout")
	require.Contains(t, codes["GR-1005"], "log_file=")
}
