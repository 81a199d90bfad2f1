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
