package shm

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// skipped is ctest's status for a test that can't be run here.
const skipped = 77

// TestProcesses builds ctest, the provider in C alone, under the sanitizers, and runs each of its tests: two processes, peers that are
// killed, stopped or hostile; memory of GPUs over a driver that does as it is told.
func TestProcesses(t *testing.T) {
	bin := build(t, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	for _, name := range list(t, bin) {
		t.Run(name, func(t *testing.T) { run(t, bin, name) })
	}
}

// TestThreads runs those that have threads of the provider's own, the mapper and who gives descriptors, or doorbells, under the thread sanitizer.
func TestThreads(t *testing.T) {
	bin := build(t, "-fsanitize=thread", "-Wno-tsan") // it knows no fences
	for _, name := range list(t, bin) {
		if strings.HasPrefix(name, "vram_") || slices.Contains([]string{"lent", "help_ends", "hostile_offers", "doorbells", "failed_handshake"}, name) {
			t.Run(name, func(t *testing.T) { run(t, bin, name) })
		}
	}
}

func build(t *testing.T, flags ...string) (bin string) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc here")
	}
	bin = filepath.Join(t.TempDir(), "ctest")
	args := append(flags, "-std=gnu17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I../../include", "-o", bin)
	for _, dir := range []string{".", "ctest"} {
		files, err := filepath.Glob(dir + "/*.c")
		require.NoError(t, err)
		args = append(args, files...)
	}
	out, err := exec.Command(gcc, append(args, "-lpthread")...).CombinedOutput()
	if err != nil && strings.Contains(string(out), "cannot find lib") {
		t.Skipf("gcc here has no library for %s", flags[0])
	}
	require.NoError(t, err, "%s", out)
	return bin
}

func list(t *testing.T, bin string) []string {
	names, err := exec.Command(bin).Output()
	require.NoError(t, err)
	require.NotEmpty(t, names)
	return strings.Fields(string(names))
}

func run(t *testing.T, bin, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, bin, name)
	out, err := c.CombinedOutput()
	if c.ProcessState.ExitCode() == skipped {
		t.Skip(string(out))
	}
	require.NoError(t, err, "%s", out)
}
