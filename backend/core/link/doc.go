// Package link is the C of the core's links and of the messages on them. It has no Go: importing it links it.
package link

// #cgo CFLAGS: -std=gnu17 -O2 -Wall -Wextra -Werror
import "C"

import _ "gorail/backend/core/base" // the layer below
