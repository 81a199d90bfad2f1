// Package transfer is the C of the core's transfers: sub-transfers, batches of operations, work requests. It has no Go
// code; an import links its C.
package transfer

// #cgo CFLAGS: -std=gnu17 -O2 -Wall -Wextra -Werror
import "C"

import _ "gorail/backend/core/link" // the layer below
