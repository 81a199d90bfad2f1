// Compiles only if the prototypes the shim calls are those that Go exports.
#include "backend_calls.h"

#include "libgorail.h" // written by cgo
