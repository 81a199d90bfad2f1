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

// Register implements fi_mr_regattr, and fi_mr_bind and fi_mr_enable where regions belong to the endpoint. Takes the lock. The errno is 0
// where it has worked.
func (r *Rail) Register(m Memory) (MR, syscall.Errno) {
	c, key, desc, rc := openMR(r.c, m)
	return MR{rail: r, c: c, Key: key, Desc: desc}, syscall.Errno(-rc)
}

// Close implements fi_close. Takes the lock.
func (m MR) Close() error { return m.rail.lib.check("fi_close of a region", closeMR(m.rail.c, m.c)) }
