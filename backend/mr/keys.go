package mr

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
)

// ErrKeys says that every key of the fabric is in use.
var ErrKeys = errors.New("no registration key left: deregister some memory")

// smallKeys is the largest key size, in bytes, at which a random key is likely to be one that was freed just now.
const smallKeys = 2

// redraws bounds the random draws for one key. A table that takes more is nearly full; it is searched upwards then.
const redraws = 64

// KeyAllocator gives out the keys of a fabric where the caller chooses them. They are random over all bits of the fabric's
// keys: who knows some keys can guess no other. Keys of one or two bytes come back late, so that a straggler of an old
// registration does not meet a new one. 0 and all ones are never given out: libraries use them to say "none". Safe for
// concurrent use.
type KeyAllocator struct {
	mask uint64
	late int // freed keys that are held back

	mu    sync.Mutex
	used  map[uint64]bool // false: freed and held back
	freed []uint64        // those held back, the oldest first
}

// NewKeyAllocator makes an allocator of keys of keySize bytes, 1 to 8.
func NewKeyAllocator(keySize int) (*KeyAllocator, error) {
	if keySize < 1 || keySize > 8 {
		return nil, fmt.Errorf("registration keys of %d bytes: 1 to 8 are possible", keySize)
	}
	a := &KeyAllocator{mask: ^uint64(0) >> (64 - 8*keySize), used: map[uint64]bool{}}
	if keySize <= smallKeys {
		a.late = int(a.mask / 2)
	}
	return a, nil
}

// Alloc gives a key that is not in use. ErrKeys when there is none.
func (a *KeyAllocator) Alloc() (uint64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if uint64(len(a.used)) >= a.mask-1 {
		if len(a.freed) == 0 {
			return 0, fmt.Errorf("%w: %d in use", ErrKeys, len(a.used))
		}
		a.forget()
	}
	key := a.draw()
	for n := 1; !a.free(key); n++ {
		if n < redraws {
			key = a.draw()
		} else {
			key = (key + 1) & a.mask
		}
	}
	a.used[key] = true
	return key, nil
}

func (a *KeyAllocator) draw() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:]) & a.mask
}

func (a *KeyAllocator) free(key uint64) bool {
	_, taken := a.used[key]
	return !taken && key != 0 && key != a.mask
}

// forget makes the key that was freed first available.
func (a *KeyAllocator) forget() {
	delete(a.used, a.freed[0])
	a.freed = a.freed[1:]
}

// Free gives a key back. False when it was not in use.
func (a *KeyAllocator) Free(key uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.used[key] {
		return false
	}
	a.used[key] = false
	a.freed = append(a.freed, key)
	if len(a.freed) > a.late {
		a.forget()
	}
	return true
}

// Len is the number of keys in use.
func (a *KeyAllocator) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.used) - len(a.freed)
}
