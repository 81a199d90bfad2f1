package gpu_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/test/cuda"
)

// TestNVMLStuck: the wait for an NVML that is stuck is bounded, and is the first one's alone. When NVML answers, its answer is taken.
func TestNVMLStuck(t *testing.T) {
	lib := cuda.Build(t).Path
	cuda.NVML(t, lib)
	t.Cleanup(gpu.SetNVMLPatience(100 * time.Millisecond))
	stuck := filepath.Join(t.TempDir(), "stuck")
	require.NoError(t, os.WriteFile(stuck, nil, 0o600))
	t.Setenv("GORAIL_TEST_NVML", "3,0,ab,7")
	t.Setenv("GORAIL_TEST_NVML_STUCK", stuck)
	path := gpu.NVMLPath(lib)
	for range 3 {
		_, err := gpu.Fabric(path)
		require.ErrorIs(t, err, gpu.ErrNVMLStuck)
	}
	require.NoError(t, os.Remove(stuck))
	require.Eventually(t, func() bool {
		all, err := gpu.Fabric(path)
		return err == nil && len(all) == 1 && all[0].Clique == 7
	}, time.Minute, time.Millisecond)
}
