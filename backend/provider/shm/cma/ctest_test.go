package cma

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/native"
)

// skipped is ctest's exit status for a test that cannot run here.
const skipped = 77

// TestProcesses builds ctest, a test program of the C code alone, with sanitizers and runs its tests: two processes;
// killed, stopped and hostile peers; GPU memory over a scripted driver.
func TestProcesses(t *testing.T) {
	bin := build(t, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	for _, name := range list(t, bin) {
		t.Run(name, func(t *testing.T) { run(t, bin, name) })
	}
}

// TestThreads runs the tests of threads, the mapper and doorbells with the thread sanitizer.
func TestThreads(t *testing.T) {
	if testing.Short() {
		t.Skip("the thread sanitizer")
	}
	bin := build(t, "-fsanitize=thread", "-Wno-tsan") // the thread sanitizer does not support fences
	for _, name := range list(t, bin) {
		if strings.HasPrefix(name, "vram_") || strings.HasPrefix(name, "asked_") || slices.Contains([]string{"offloads", "assist_ends", "hostile_offers", "ring_asleep", "ring_threads", "mapped_copies", "mapped_forgotten", "mapped_threads", "doorbells", "dozes", "failed_handshake", "failed_with_messages"}, name) {
			t.Run(name, func(t *testing.T) { run(t, bin, name) })
		}
	}
}

// build builds ctest; flags[0] is its sanitizer.
func build(t *testing.T, flags ...string) (bin string) {
	return native.Part{Name: "ctest", Program: true, Flags: flags, Include: []string{"backend/include"},
		Dirs: []string{"backend/provider/internal/clib", "backend/provider/shm/cma", "backend/provider/shm/cma/ctest"}}.Build(t)
}

func list(t *testing.T, bin string) []string {
	names, err := exec.Command(bin).Output()
	require.NoError(t, err)
	require.NotEmpty(t, names)
	return strings.Fields(string(names))
}

func run(t *testing.T, bin, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, bin, name)
	c.WaitDelay = 10 * time.Second // a process that the failed test left behind holds its output open
	if testing.Short() {
		c.Env = append(os.Environ(), "CTEST_SHORT=1") // a quarter of the rounds
	}
	out, err := c.CombinedOutput()
	if c.ProcessState.ExitCode() == skipped {
		t.Skip(string(out))
	}
	require.NoError(t, err, "%s", out)
}
