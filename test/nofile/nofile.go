// Package nofile takes a test's own process to the limit of its descriptors.
package nofile

import "golang.org/x/sys/unix"

// TB is the part of testing.TB that is used here.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// None lets nothing be opened in this process until its result is called: setrlimit(2) of RLIMIT_NOFILE to the three standard descriptors. What is
// closed meanwhile leaves no room. poll(2) of more than three descriptors fails with EINVAL.
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
