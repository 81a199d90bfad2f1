package runtimeoverlay

import (
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// Its tests are in Python, as the overlay is.
func TestOverlay(t *testing.T) {
	python := os.Getenv("GORAIL_PYTHON")
	if python == "" {
		python = "python3"
	}
	cmd := exec.CommandContext(t.Context(), python, "-B", "overlay_test.py", runtime.GOROOT()) //nolint:staticcheck // the toolchain that runs the test
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "Ran 3 tests")
}
