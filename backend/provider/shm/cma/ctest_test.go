package cma

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/native"
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

// build makes the program; flags[0] is its sanitizer.
func build(t *testing.T, flags ...string) (bin string) {
	return native.Part{Name: "ctest", Program: true, Flags: flags, Include: []string{"backend/include"},
		Dirs: []string{"backend/provider/shm/cma", "backend/provider/shm/cma/ctest"}}.Build(t)
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
