package local

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// skipped is ctest's status for a test that can't be run here.
const skipped = 77

// TestProcesses builds ctest, the provider in C alone, under the sanitizers, and runs each of its tests: two processes, peers that are
// killed, stopped, hostile or of another user.
func TestProcesses(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc here")
	}
	bin := filepath.Join(t.TempDir(), "ctest")
	args := []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-std=gnu17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o", bin}
	for _, dir := range []string{".", "ctest"} {
		files, err := filepath.Glob(dir + "/*.c")
		require.NoError(t, err)
		args = append(args, files...)
	}
	out, err := exec.Command(gcc, append(args, "-lpthread")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	names, err := exec.Command(bin).Output()
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range strings.Fields(string(names)) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			c := exec.CommandContext(ctx, bin, name)
			out, err := c.CombinedOutput()
			if c.ProcessState.ExitCode() == skipped {
				t.Skip(string(out))
			}
			require.NoError(t, err, "%s", out)
		})
	}
}
