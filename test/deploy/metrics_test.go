package deploy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/skip"
	"gorail/test/testenv"
	"gorail/test/walls"
)

// TestMetricsPod: the command of metrics.yaml, with its rights and its read-only mount, shows an engine of another user in a pod of the node
// that mounts the folder as one-node.yaml does, with default options.
func TestMetricsPod(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	skip.UnlessRoot(t, "needs root to create namespaces")
	skip.OrFail(t, (&walls.Container{}).Possible())
	list, err := load("metrics.yaml", true)
	require.NoError(t, err)
	c := of(list, "DaemonSet")[0].Spec.Template.Spec.Containers[0]
	require.Equal(t, meetFolder, c.VolumeMounts[0].MountPath)
	require.Equal(t, []string{"ALL"}, c.SecurityContext.Capabilities.Drop)

	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patient(time.Minute))
	defer cancel()
	node, tmp := t.TempDir(), t.TempDir()
	for _, folder := range []string{node, tmp} {
		require.NoError(t, os.Chmod(filepath.Dir(folder), 0o755))
		require.NoError(t, os.Chmod(folder, 0o777|os.ModeSticky))
	}
	pod := func(in walls.Container, setenv ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "/proc/self/exe")
		cmd.SysProcAttr, cmd.WaitDelay = in.Attr(), time.Second
		cmd.Env = append(append(os.Environ(), in.Setenv(), "HOME=/"), setenv...)
		return cmd
	}
	engine := pod(walls.Container{Name: "engine", UID: user(env.Python, 1000), Mounts: []walls.Mount{{Host: node, At: meetFolder}, {Host: tmp, At: tmp}},
		Command: []string{env.Python, "-c", `import nixl_gorail
nixl_gorail.enable()
nixl = nixl_gorail.nixl_api()
agent = nixl.nixl_agent("ann", nixl.nixl_agent_config(backends=["GORAIL"]))
print("ready", flush=True)
input()`}},
		"PYTHONPATH="+filepath.Join(testenv.Root(), "python"), "PYTHONDONTWRITEBYTECODE=1", "GORAIL_PLUGIN_DIR="+env.PluginDir, "NIXL_PLUGIN_DIR=",
		"XDG_CACHE_HOME="+filepath.Join(tmp, "cache"), "XDG_RUNTIME_DIR=")
	in, err := engine.StdinPipe()
	require.NoError(t, err)
	out, err := engine.StdoutPipe()
	require.NoError(t, err)
	engine.Stderr = os.Stderr
	require.NoError(t, engine.Start())
	defer func() { in.Close(); _ = engine.Wait() }()
	for lines := bufio.NewScanner(out); ; {
		require.True(t, lines.Scan(), "the engine has ended")
		if lines.Text() == "ready" {
			break
		}
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()

	at, keep := freeAddress(t), "-all"
	for _, right := range c.SecurityContext.Capabilities.Add {
		keep += ",+" + strings.ToLower(right)
	}
	setpriv, err := exec.LookPath("setpriv")
	skip.OrFail(t, err)
	command := []string{setpriv, "--inh-caps", keep, "--bounding-set", keep, filepath.Join(env.PluginDir, c.Command[0])}
	for _, arg := range c.Command[1:] {
		command = append(command, strings.Replace(arg, "0.0.0.0:9400", at, 1))
	}
	said := &bytes.Buffer{}
	metrics := pod(walls.Container{Name: "metrics", Command: command, Mounts: []walls.Mount{{Host: node, At: meetFolder, ReadOnly: c.VolumeMounts[0].ReadOnly}}})
	metrics.Stdout, metrics.Stderr = said, said
	require.NoError(t, metrics.Start())
	var page string
	require.Eventually(t, func() bool {
		r, err := http.Get(fmt.Sprintf("http://%s/metrics", at))
		if err != nil {
			return false
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		page = string(b)
		return err == nil && strings.Contains(page, `gorail_engine_up{agent="ann"`)
	}, testenv.Patient(30*time.Second), 50*time.Millisecond, "%s", said)
	require.Regexp(t, `gorail_engine_up\{agent="ann",.*\} 1\n`, page)
	require.NoError(t, metrics.Process.Kill())
	_ = metrics.Wait()
}
