package core

// #include "gr_policy.h"
import "C"

import "unsafe"

// Notif is a received notification.
type Notif struct {
	From string
	Msg  []byte
}

// Check makes one bounded step of progress and returns the status of a transfer, a nixl_status_t value. Implements
// gr_check, which the shim calls without Go; this method is for tests and Go programs.
func (k *Core) Check(slot unsafe.Pointer, handle uint64) int {
	return int(C.gr_check(k.c, (*C.gr_xfer)(slot), C.uint64_t(handle)))
}

// TakeNotifs makes one bounded step of progress, then takes all received notifications, oldest first. Implements
// gr_notif_take and gr_notif_free.
func (k *Core) TakeNotifs() []Notif {
	list := C.gr_notif_take(k.c)
	var out []Notif
	for n := list; n != nil; n = n.next {
		out = append(out, Notif{
			From: C.GoStringN(n.name, C.int(n.name_len)),
			Msg:  C.GoBytes(unsafe.Pointer(n.msg), C.int(n.msg_len)),
		})
	}
	C.gr_notif_free(k.c, list)
	return out
}
