// Package nofile takes a test's own process to the limit of its descriptors.
package nofile

import "golang.org/x/sys/unix"

// TB is the used part of testing.TB.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// None sets RLIMIT_NOFILE to the three standard descriptors, until its result is called. This process can then open no
// descriptor, even after it has closed others. poll(2) of more than three descriptors fails with EINVAL.
func None(t TB) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatalf("getrlimit: %v", err)
	}
	set := func(limit unix.Rlimit) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatalf("setrlimit: %v", err)
		}
	}
	set(unix.Rlimit{Cur: 3, Max: was.Max})
	return func() { t.Helper(); set(was) }
}
