package ofi

import (
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
)

// Register implements fi_mr_regattr. The error wraps provider.ErrRegister and the errno; ENOKEY: the key is in use.
func (r *rail) Register(addr, length, key uint64, peers option.Rights) (provider.MR, error) {
	if err := r.dev.CheckRange(addr, length); err != nil {
		return nil, err
	}
	m, errno := r.register(libfabric.Memory{Addr: addr, Length: length, Key: key, Peers: peers})
	if errno != 0 {
		hint := ""
		if errno == syscall.ENOMEM || errno == syscall.EPERM {
			hint = " (raise the limit on locked memory: ulimit -l)"
		}
		return nil, r.error(provider.ErrRegister, r.lib().Errno(fmt.Sprintf("fi_mr_regattr of %d bytes at %#x%s", length, addr, hint), errno))
	}
	return m, nil
}

// Later implements provider.Rail: the memory must be mapped, and may be pinned.
func (r *rail) Later(uint64, uint64) bool { return false }

// region implements provider.MR.
type region struct {
	rail *rail
	c    libfabric.MR
	base uint64

	mu     sync.Mutex
	closed bool
}

func (m *region) Key(provider.Salt) uint64 { return m.c.Key }
func (m *region) Base() uint64             { return m.base }
func (m *region) Desc() unsafe.Pointer     { return m.c.Desc }
func (m *region) Same() error              { return nil }

// Close implements fi_close. Operations that have begun still land: closing a region is no fence.
func (m *region) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	if err := m.c.Close(); err != nil {
		return m.rail.error(provider.ErrRegister, err)
	}
	m.closed = true
	return nil
}

func (r *rail) registerGPU(call string, m libfabric.Memory) (provider.MR, error) {
	m.GPU = true
	reg, errno := r.register(m)
	if errno != 0 {
		return nil, r.lib().Errno(call, errno)
	}
	return reg, nil
}

func (r *rail) register(m libfabric.Memory) (*region, syscall.Errno) {
	c, errno := r.c.Register(m)
	if errno != 0 {
		return nil, errno
	}
	reg := &region{rail: r, c: c}
	if r.caps.VirtAddr {
		reg.base = m.Addr
	}
	return reg, 0
}
