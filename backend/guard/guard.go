// Package guard copies memory of the application, which may be unmapped or protected at any time, without harm to the process.
// backend/include/gr_guard.h has its calls, for C. It has no Go code; an import links its C.
package guard

// #cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
// #cgo LDFLAGS: -lpthread
import "C"
