// Package control is the C of the core that Go and the shim call (gr_policy.h, gr_core.h), and of its progress. It has no Go: importing it links it.
package control

// #cgo CFLAGS: -std=gnu17 -O2 -Wall -Wextra -Werror
import "C"

import _ "gorail/backend/core/transfer" // the layer below
