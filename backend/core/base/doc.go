// Package base is the lowest C of the core: limits, time, counters, regions; sessions' numbers and queues; rails. It has no Go: importing it links it.
package base

// #cgo CFLAGS: -std=gnu17 -O2 -Wall -Wextra -Werror
// #cgo LDFLAGS: -lpthread
import "C"
