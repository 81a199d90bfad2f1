// Package base is the lowest layer of the core's C: limits, time, counters, regions, sessions with their numbers and
// queues, rails. It has no Go code; an import links its C.
package base

// #cgo CFLAGS: -std=gnu17 -O2 -Wall -Wextra -Werror
// #cgo LDFLAGS: -lpthread
import "C"
