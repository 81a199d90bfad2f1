package mr

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
)

// ErrKeys means that all keys of the fabric are in use.
var ErrKeys = errors.New("no registration key left: deregister some memory")

// smallKeys is the largest key size, in bytes, for which freed keys are held back. With so few keys, a random key is likely one
// that was freed recently.
const smallKeys = 2

// redraws limits the random draws for one key. After that the table is nearly full, and Alloc searches upwards.
const redraws = 64

// KeyAllocator allocates the keys of a fabric on which the caller chooses them. Keys are random over all bits, so that known
// keys do not help to guess others. Freed keys of one or two bytes are held back, so that a late access with an old key does
// not reach a new registration. 0 and all ones are not used, because libraries use them for "none". A KeyAllocator is safe for
// concurrent use.
type KeyAllocator struct {
	mask    uint64
	heldMax int // number of freed keys that are held back

	mu    sync.Mutex
	used  map[uint64]bool // false: freed and held back
	freed []uint64        // keys that are held back, oldest first
}

// NewKeyAllocator makes an allocator of keys of keySize bytes, 1 to 8.
func NewKeyAllocator(keySize int) (*KeyAllocator, error) {
	if keySize < 1 || keySize > 8 {
		return nil, fmt.Errorf("registration keys of %d bytes: 1 to 8 are possible", keySize)
	}
	a := &KeyAllocator{mask: ^uint64(0) >> (64 - 8*keySize), used: map[uint64]bool{}}
	if keySize <= smallKeys {
		a.heldMax = int(a.mask / 2)
	}
	return a, nil
}

// Alloc returns an unused key. ErrKeys: all are in use.
func (a *KeyAllocator) Alloc() (uint64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if uint64(len(a.used)) >= a.mask-1 {
		if len(a.freed) == 0 {
			return 0, fmt.Errorf("%w: %d in use", ErrKeys, len(a.used))
		}
		a.recycle()
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

// recycle makes the key available that was freed first.
func (a *KeyAllocator) recycle() {
	delete(a.used, a.freed[0])
	a.freed = a.freed[1:]
}

// Free frees a key. False: the key was not in use.
func (a *KeyAllocator) Free(key uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.used[key] {
		return false
	}
	a.used[key] = false
	a.freed = append(a.freed, key)
	if len(a.freed) > a.heldMax {
		a.recycle()
	}
	return true
}

// Len is the number of keys in use.
func (a *KeyAllocator) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.used) - len(a.freed)
}
