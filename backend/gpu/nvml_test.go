package gpu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMayReachHosts: NVML is asked on machines of racks, and where there are IMEX channels.
func TestMayReachHosts(t *testing.T) {
	for text, rack := range map[string]bool{
		"Model: \t\t NVIDIA H200\nIRQ: 1\n": false, "Model: \t\t NVIDIA GeForce RTX 4090\n": false, "Model: \t\t NVIDIA B200\n": false,
		"Model: \t\t NVIDIA GB200\nIRQ: 1\n": true, "Model: \t\t NVIDIA GH200 480GB\n": true, "IRQ: 1\nModel: \t\t NVIDIA GB300\n": true,
	} {
		root := t.TempDir()
		at := filepath.Join(root, "proc/driver/nvidia/gpus/0000:01:00.0")
		require.NoError(t, os.MkdirAll(at, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(at, "information"), []byte(text), 0o600))
		require.Equal(t, rack, MayReachHosts(root, DefaultIMEX), text)
		require.NoError(t, os.MkdirAll(filepath.Join(root, DefaultIMEX), 0o755))
		require.True(t, MayReachHosts(root, DefaultIMEX), text)
	}
}
