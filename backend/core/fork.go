package core

// #include "gr_policy.h"
import "C"

// Forks lists descriptors that a child of fork must close. It implements peer.Descriptors. Any goroutine may call it.
type Forks struct{}

// Hold lists a descriptor. Without memory for the entry, children keep the descriptor open. Implements gr_fd_hold.
func (Forks) Hold(fd int) { C.gr_fd_hold(C.int(fd)) }

// Release removes a descriptor from the list. Call it before the descriptor is closed. Implements gr_fd_release.
func (Forks) Release(fd int) { C.gr_fd_release(C.int(fd)) }
