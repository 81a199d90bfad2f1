// Compiles only if the shim's prototypes equal those that Go exports.
#include "backend_calls.h"

#include "libgorail.h" // written by cgo
