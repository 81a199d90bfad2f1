package gpu_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPTX: gather.ptx comes from the current sources. With the same compiler, the output is identical.
func TestPTX(t *testing.T) {
	ptx, err := os.ReadFile("kernel/gather.ptx")
	require.NoError(t, err)
	var sources []byte
	for _, f := range []string{"kernel/gather.cu", "../include/gr_gather.h", "../include/gr_op.h"} {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		sources = append(sources, b...)
	}
	sum := sha256.Sum256(sources)
	head := strings.SplitN(string(ptx), "\n", 3)
	require.True(t, strings.HasSuffix(head[0], hex.EncodeToString(sum[:])), "run kernel/make.sh: gather.cu has changed")
	require.Contains(t, string(ptx), "\n.version 6.0\n.target sm_50\n", "drivers and GPUs of old want these")

	version, err := exec.Command("clang-14", "--version").Output()
	if err != nil || !strings.HasPrefix(string(version), strings.TrimPrefix(head[1], "// ")) {
		t.Skip("the compiler that made it is not here: ", head[1])
	}
	out := filepath.Join(t.TempDir(), "gather.ptx")
	text, err := exec.Command("kernel/make.sh", out).CombinedOutput()
	require.NoError(t, err, "%s", text)
	made, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, string(made), string(ptx))
}
