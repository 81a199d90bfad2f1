package clib

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/native"
)

// TestGuard builds ctest, a test program of the C code, with each sanitizer. It copies memory that is missing, protected or truncated, by
// process_vm_readv and by a pipe.
func TestGuard(t *testing.T) {
	for _, flags := range [][]string{{"-O2"}, {"-fsanitize=undefined", "-fno-sanitize-recover=all"}, {"-fsanitize=thread"}} {
		t.Run(flags[0], func(t *testing.T) {
			bin := native.Part{Name: "ctest", Program: true, Flags: flags, Include: []string{"backend/include"}, Dirs: []string{"backend/provider/internal/clib", "backend/provider/internal/clib/ctest"}}.Build(t)
			out, err := exec.Command(bin).CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}
