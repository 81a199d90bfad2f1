// Package control is the C of the core that Go and the shim call (gr_policy.h, gr_core.h), and the C of its progress. It
// has no Go code; an import links its C.
package control

// #cgo CFLAGS: -std=gnu17 -O2 -Wall -Wextra -Werror
import "C"

import _ "gorail/backend/core/transfer" // the layer below
