package libfabric

import (
	"syscall"
	"unsafe"
)

// MR is a registered range.
type MR struct {
	rail *Rail
	c    *fiMR
	Key  uint64
	Desc unsafe.Pointer
}

// Register implements fi_mr_regattr. If regions belong to an endpoint, it also implements fi_mr_bind and fi_mr_enable.
// It takes the lock. The errno is 0 on success.
func (r *Rail) Register(m Memory) (MR, syscall.Errno) {
	c, key, desc, rc := openMR(r.c, m)
	return MR{rail: r, c: c, Key: key, Desc: desc}, syscall.Errno(-rc)
}

// Close implements fi_close. Takes the lock.
func (m MR) Close() error { return m.rail.lib.check("fi_close of a region", closeMR(m.rail.c, m.c)) }
