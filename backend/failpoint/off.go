//go:build !failpoints

package failpoint

// Fail counts a pass of the point. It returns the error that this pass fails with; nil: the pass goes on.
func Fail(string) error { return nil }
