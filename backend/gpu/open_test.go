package gpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/test/cuda"
)

// TestOpenRefused: Open distinguishes an absent library, another library, an old driver, no GPU and a broken driver.
func TestOpenRefused(t *testing.T) {
	lib := cuda.Build(t)
	for name, c := range map[string]struct {
		path string
		set  map[string]int
		why  gpu.Why
		says string
	}{
		"absent":    {"/nowhere/libcuda.so.1", nil, gpu.NoLibrary, "option cuda_path"},
		"other":     {"libm.so.6", nil, gpu.NotADriver, "cuDriverGetVersion"},
		"old":       {lib.Path, map[string]int{"version": 11020}, gpu.OldDriver, "supports CUDA 11.2, but CUDA 11.4 (driver 470) or later is required"},
		"no device": {lib.Path, map[string]int{"init": cuda.NoDevice}, gpu.NoDevice, "CUDA_ERROR_NO_DEVICE"},
		"none seen": {lib.Path, map[string]int{"devices": 0}, gpu.NoDevice, "cuDeviceGetCount"},
		"stub":      {lib.Path, map[string]int{"init": cuda.Stub}, gpu.Failed, "CUDA_ERROR_STUB_LIBRARY"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range c.set {
				lib.Set(k, v)
			}
			_, err := gpu.Open(c.path)
			require.ErrorIs(t, err, c.why)
			require.ErrorContains(t, err, c.says)
			lib.Set("version", 13000)
			lib.Set("init", 0)
			lib.Set("devices", 2)
		})
	}
}

// TestNoCompiler: if the driver cannot translate the PTX, may not, or knows only older versions, copy engines are used.
func TestNoCompiler(t *testing.T) {
	for name, set := range map[string][2]any{"none": {"jit", cuda.NoJIT}, "off": {"jit", cuda.JITOff}, "old": {"ptx", 50}} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			r.lib.Set(set[0].(string), set[1].(int))
			i, err := r.drv.Device(0)
			require.NoError(t, err)
			require.False(t, i.Kernel)
			require.Contains(t, i.NoKernel, "CUDA_ERROR_")
			r.scatter(0, 1, true, 300, gpu.Auto)
			require.Zero(t, r.lib.Count("launches"))
			require.NotZero(t, r.lib.Count("copies"))
		})
	}
}
