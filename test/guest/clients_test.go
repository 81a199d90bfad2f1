package guest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/skip"
	"gorail/test/testenv"
)

// clients is where tools/test-hosts.sh installs what others have written.
func clients() string { return filepath.Join(testenv.Root(), ".cache", "hosts") }

// found skips the test if a file is missing: tools/test-hosts.sh installs it.
func found(t *testing.T, pattern string) string {
	t.Helper()
	list, _ := filepath.Glob(pattern)
	if len(list) == 0 {
		if os.Getenv("GORAIL_TEST_HOSTS") == "" {
			t.Skipf("no %s: run make test-hosts", pattern)
		}
		skip.OrFail(t, fmt.Errorf("no %s", pattern))
	}
	return list[0]
}

// client is client.py, which transfers all the time.
func client(t *testing.T, how string, seconds int, more ...string) *exec.Cmd {
	t.Helper()
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	c := exec.CommandContext(t.Context(), env.Python, "clients/client.py", env.Backend, how, strconv.Itoa(seconds))
	own, _, err := environment(env)
	require.NoError(t, err)
	c.Env = append(append(own, "PYTHONPATH="+clients()), more...)
	return c
}

// done returns how many transfers and children a client has counted.
func done(t *testing.T, out string) (transfers, children int) {
	t.Helper()
	at := strings.Index(out, "@done ")
	require.GreaterOrEqual(t, at, 0, out)
	_, err := fmt.Sscanf(out[at:], "@done %d %d", &transfers, &children)
	require.NoError(t, err)
	require.Positive(t, transfers, out)
	return transfers, children
}

// uvloop's event loop learns of its children by SIGCHLD. It loses none.
func TestUvloop(t *testing.T) {
	t.Parallel()
	found(t, filepath.Join(clients(), "uvloop"))
	out, err := client(t, "uvloop", 10).CombinedOutput()
	require.NoError(t, err, "%s", out)
	transfers, children := done(t, string(out))
	require.Positive(t, children)
	t.Logf("%d transfers, %d children", transfers, children)
}

// A Rust host on tokio with nixl-sys: no child's end is lost, whether tokio learns of it by SIGCHLD or by a pidfd.
func TestTokio(t *testing.T) {
	t.Parallel()
	program := found(t, filepath.Join(clients(), "cargo", "release", "tokio_host"))
	env := testenv.Need(t)
	own, _, err := environment(env)
	require.NoError(t, err)
	for _, way := range []string{"sigchld", "pidfd"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			c := exec.CommandContext(t.Context(), program, env.Backend, "10", way)
			c.Env = own
			out, err := c.CombinedOutput()
			require.NoError(t, err, "%s", out)
			transfers, children := done(t, string(out))
			require.Positive(t, children)
			t.Logf("%d transfers, %d children", transfers, children)
		})
	}
}

// The CPU profiler of gperftools takes SIGPROF a thousand times a second, and writes its profile.
func TestGperftools(t *testing.T) {
	t.Parallel()
	lib := found(t, "/usr/lib/*/libprofiler.so.0")
	profile := filepath.Join(t.TempDir(), "profile")
	out, err := client(t, "plain", 10, "LD_PRELOAD="+lib, "CPUPROFILE="+profile, "CPUPROFILE_FREQUENCY=1000").CombinedOutput()
	require.NoError(t, err, "%s", out)
	done(t, string(out))
	info, err := os.Stat(profile)
	require.NoError(t, err)
	require.Greater(t, info.Size(), int64(1<<12), "%s", out)
}

// py-spy stops the process by ptrace, 200 times a second, and reads its stacks.
func TestPySpy(t *testing.T) {
	t.Parallel()
	spy := found(t, filepath.Join(clients(), "bin", "py-spy"))
	c := client(t, "plain", 15)
	pipe, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	lines := bufio.NewScanner(pipe)
	for lines.Scan() && lines.Text() != "@busy" {
	}
	record := filepath.Join(t.TempDir(), "record")
	out, err := exec.CommandContext(t.Context(), spy, "record", "--pid", strconv.Itoa(c.Process.Pid), "--duration", "5", "--rate", "200",
		"--native", "--format", "raw", "--output", record).CombinedOutput()
	rest := ""
	for lines.Scan() {
		rest += lines.Text() + "\n"
	}
	require.NoError(t, c.Wait(), rest)
	done(t, rest)
	require.NoError(t, err, "%s", out)
	b, err := os.ReadFile(record)
	require.NoError(t, err)
	require.Contains(t, string(b), "turn (client.py", "%s", out)
}
