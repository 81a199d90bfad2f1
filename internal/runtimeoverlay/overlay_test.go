package runtimeoverlay

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Its tests are in Python, as the overlay is.
func TestOverlay(t *testing.T) {
	python := os.Getenv("GORAIL_PYTHON")
	if python == "" {
		python = "python3"
	}
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output() // a test that is built with -trimpath does not know it
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), python, "-B", "overlay_test.py", strings.TrimSpace(string(root))).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "Ran 3 tests")
}
