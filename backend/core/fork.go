package core

// #include "gr_policy.h"
import "C"

// CloseInForks lists a descriptor that a child of fork must close. Without memory for the entry, children keep it open. release removes
// it from the list. It is a host.ForkCloser. Implements gr_fd_hold and gr_fd_release.
func CloseInForks(fd int) (release func()) {
	C.gr_fd_hold(C.int(fd))
	return func() { C.gr_fd_release(C.int(fd)) }
}
