// Package skip is the only way in which tests handle a capability that the machine lacks.
package skip

import (
	"errors"
	"os"
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
