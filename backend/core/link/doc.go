// Package link is the C of the core's links and of their messages. It has no Go code; an import links its C.
package link

// #cgo CFLAGS: -std=gnu17 -O2 -Wall -Wextra -Werror
import "C"

import _ "gorail/backend/core/base" // the layer below
