// Package base is the part of cma's C that needs no rail: the layout of memory that processes share, and the
// state of other processes' threads. It has no Go code; an import links its C.
package base

// #cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
// #cgo LDFLAGS: -lpthread
import "C"

import _ "gorail/backend/guard" // its C
