// Package skip is the only way in which tests handle a capability that the machine lacks.
package skip

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
)

// TB is the used part of testing.TB.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// OrFail skips a test with err as the reason. If CI is set, it fails the test instead. With nil it does nothing.
func OrFail(t TB, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%v", err)
	}
	t.Skipf("%v", err)
}

// UnlessRoot skips a test that needs root. why names the missing permission.
func UnlessRoot(t TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		OrFail(t, errors.New(why))
	}
}

// Unpacked returns the path of a program: in PATH, or where tools/unpacked.sh has put its Debian package. Without it OrFail skips the test,
// whose package is two folders below the root.
func Unpacked(t TB, debian, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		if path, err = filepath.Abs(filepath.Join("../../.cache", debian, "usr/bin", program)); err == nil {
			_, err = os.Stat(path)
		}
	}
	OrFail(t, err)
	return path
}
