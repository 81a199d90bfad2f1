package core

// #include "gr_policy.h"
import "C"

// Forks sees to it that children of fork hold none of the given descriptors. It is a peer.Descriptors; any goroutine may call it.
type Forks struct{}

// Hold has every child close a descriptor. Without memory for it a child keeps it. Implements gr_fd_hold.
func (Forks) Hold(fd int) { C.gr_fd_hold(C.int(fd)) }

// Release comes before the descriptor is closed here. Implements gr_fd_release.
func (Forks) Release(fd int) { C.gr_fd_release(C.int(fd)) }
