package mr

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
)

// ErrKeys says that every key of the fabric is in use.
var ErrKeys = errors.New("no registration key left: deregister some memory")

// KeyAllocator gives out the keys of a fabric where the caller chooses them. It starts anywhere and counts upwards, so a
// freed key comes back only after all others have been out once: a straggler of an old registration does not meet a new one.
// 0 and all ones are never given out: libraries use them to say "none". Safe for concurrent use.
type KeyAllocator struct {
	mask uint64

	mu   sync.Mutex
	next uint64
	used map[uint64]struct{}
}

// NewKeyAllocator makes an allocator of keys of keySize bytes, 1 to 8.
func NewKeyAllocator(keySize int) (*KeyAllocator, error) { return newKeys(keySize, rand.Uint64()) }

func newKeys(keySize int, start uint64) (*KeyAllocator, error) {
	if keySize < 1 || keySize > 8 {
		return nil, fmt.Errorf("registration keys of %d bytes: 1 to 8 are possible", keySize)
	}
	mask := ^uint64(0) >> (64 - 8*keySize)
	return &KeyAllocator{mask: mask, next: start & mask, used: map[uint64]struct{}{}}, nil
}

// Alloc gives a key that is not in use. ErrKeys when there is none.
func (a *KeyAllocator) Alloc() (uint64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if uint64(len(a.used)) >= a.mask-1 {
		return 0, fmt.Errorf("%w: %d in use", ErrKeys, len(a.used))
	}
	for {
		key := a.next
		a.next = (a.next + 1) & a.mask
		if _, taken := a.used[key]; !taken && key != 0 && key != a.mask {
			a.used[key] = struct{}{}
			return key, nil
		}
	}
}

// Free gives a key back. False when it was not in use.
func (a *KeyAllocator) Free(key uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, was := a.used[key]
	delete(a.used, key)
	return was
}

// Len is the number of keys in use.
func (a *KeyAllocator) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.used)
}
