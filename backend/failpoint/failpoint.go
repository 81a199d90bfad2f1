// Package failpoint makes allocations and system calls fail for tests. gr_failpoint.h has the list of points, for Go and
// for C. With the build tag failpoints each pass of a point is counted, and one pass may be made to fail. Without the tag
// Fail is empty and inlined, and C's GR_FAIL is 0.
package failpoint
