package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/testenv"
)

// TestNVLinkBench: `gorail bench --memory fabric` allocates memory with handles for NVLink between hosts, and moves and compares it between two machines of
// a rack without the wire. On a machine without an IMEX channel it says what lacks.
func TestNVLinkBench(t *testing.T) {
	t.Parallel()
	r := newRack(t)
	command := func(name string, m tray, args ...string) *exec.Cmd {
		c := exec.Command(testenv.Tool(), append([]string{"bench"}, args...)...)
		c.Env = append(append(os.Environ(), "NIXL_PLUGIN_DIR="+r.env.PluginDir, "NIXL_WHEEL_DIR="+r.env.WheelDir), r.setenv(name, m)...)
		return c
	}
	target := command("bob", tray{}, "--listen", "10.77.0.2:0")
	says, err := target.StderrPipe()
	require.NoError(t, err)
	r.hosts["bob"].In(func() { require.NoError(t, target.Start()) })
	token, at, lines := regexp.MustCompile(`\S+#\S+`), "", bufio.NewScanner(says)
	for at == "" && lines.Scan() {
		at = token.FindString(lines.Text())
	}
	var reads sync.WaitGroup
	reads.Go(func() { _, _ = io.Copy(io.Discard, says) }) // what it says later must not fill the pipe
	t.Cleanup(func() {
		_ = target.Process.Kill()
		reads.Wait()
		_ = target.Wait()
	})
	require.NotEmpty(t, at, "the listener has ended")

	run := func(m tray, args ...string) (out, log *bytes.Buffer, err error) {
		out, log = new(bytes.Buffer), new(bytes.Buffer)
		c := command("alice", m, append([]string{"--connect", at, "--memory", "fabric", "--limits", "", "--repeats", "1", "-o", "json"}, args...)...)
		c.Stdout, c.Stderr = out, log
		r.hosts["alice"].In(func() { err = c.Start() })
		require.NoError(t, err)
		return out, log, c.Wait()
	}
	before := r.wire()
	out, log, err := run(tray{}, "--shapes", "16M", "--op_type", "WRITE,READ", "--num_iter", "50")
	require.NoError(t, err, log.String())
	var got struct{ Samples []struct{ Done uint64 } }
	require.NoError(t, json.Unmarshal(out.Bytes(), &got), out.String())
	require.Len(t, got.Samples, 2)
	for _, s := range got.Samples {
		require.EqualValues(t, 50, s.Done)
	}
	require.Less(t, r.wire()-before, uint64(50<<24), "half of the bytes went over the wire")

	_, log, err = run(tray{noIMEX: true}, "--shapes", "16M", "--num_iter", "1")
	require.Error(t, err)
	require.Contains(t, log.String(), "wants an IMEX channel")
	require.Contains(t, log.String(), "CUDA_ERROR_NOT_PERMITTED")
}
