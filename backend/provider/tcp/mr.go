package tcp

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"unsafe"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
)

// Register enters the range into the rail's table. Nothing is pinned, and the memory may be mapped later. key is ignored: the
// key is random. Implements no call.
func (r *rail) Register(addr, length, _ uint64, peers option.Rights) (provider.MR, error) {
	if length == 0 || addr+length < addr || length > 1<<sock.OffsetBits {
		return nil, r.error(provider.ErrRegister, fmt.Errorf("range %#x + %d is empty, wraps, or has more than %d bytes", addr, length, uint64(1)<<sock.OffsetBits))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := r.enter(addr, length, peers, nil, false)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Later implements provider.Rail: the table takes any range at any time.
func (r *rail) Later(uint64, uint64) bool { return true }

// region implements provider.MR: an entry of the rail's table.
type region struct {
	rail   *rail
	number uint32
	key    uint64  // what keys of sessions are made of. No peer gets it
	gpu    *bounce // nil: host memory
	once   sync.Once
}

// Key implements provider.MR: each session has another one.
func (m *region) Key(salt provider.Salt) uint64 { return sock.SessionKey(salt, m.key, m.number) }

// Base returns the region's number in the upper bits: the lower bits are the offset.
func (m *region) Base() uint64 { return uint64(m.number) << sock.OffsetBits }

func (m *region) Desc() unsafe.Pointer { return nil }
func (m *region) Same() error          { return nil }

// Close ends all access to the region, also in the middle of a frame.
func (m *region) Close() error {
	var err error
	m.once.Do(func() {
		if err = m.rail.c.Deregister(m.number); err != nil {
			err = m.rail.error(provider.ErrRegister, fmt.Errorf("a copy by the GPU has not ended within a second: %w", err))
		}
		m.rail.regions.Add(-1)
		if m.gpu != nil {
			m.gpu.regions.Add(-1)
		}
	})
	return err
}

// enter enters a range into the rail's table. Under mu.
func (r *rail) enter(addr, length uint64, peers option.Rights, g *sock.GPU, ours bool) (*region, error) {
	if r.closed {
		return nil, r.error(provider.ErrRegister, errClosed)
	}
	m, err := &region{rail: r, key: r.keys.next()}, error(nil)
	if m.number, err = r.c.Register(addr, length, m.key, peers, g, ours); err != nil {
		return nil, r.error(provider.ErrRegister, fmt.Errorf("the table of %d regions: %w", r.regions.Load(), err))
	}
	r.regions.Add(1)
	return m, nil
}

// randoms are random numbers that are read several at a time: a read may be a system call.
type randoms struct {
	bytes [512]byte
	left  []byte // of bytes
}

func (r *randoms) next() uint64 {
	if len(r.left) == 0 {
		_, _ = rand.Read(r.bytes[:]) // never fails
		r.left = r.bytes[:]
	}
	n := binary.NativeEndian.Uint64(r.left)
	clear(r.left[:8])
	r.left = r.left[8:]
	return n
}
