// Package skip is the one way in which tests treat what a machine lacks.
package skip

import (
	"errors"
	"os"
)

// TB is the part of testing.TB that is used here.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// OrFail skips a test for the reason that err gives. Where CI is set, what is missing is a failure. With nil it does nothing.
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

// UnlessRoot skips what this user may not do; why says what that is.
func UnlessRoot(t TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		OrFail(t, errors.New(why))
	}
}
