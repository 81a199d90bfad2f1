package engine

import "sync"

// keyLocks is a lock for each key: a caller waits only for those of its own key. The zero value is ready.
type keyLocks[K comparable] struct {
	mu   sync.Mutex
	used map[K]*keyLock
}

type keyLock struct {
	sync.Mutex
	users int // holding it or waiting for it; guarded by keyLocks.mu
}

// lock takes the key's lock; the caller calls unlock once.
func (k *keyLocks[K]) lock(key K) (unlock func()) {
	k.mu.Lock()
	if k.used == nil {
		k.used = map[K]*keyLock{}
	}
	l := k.used[key]
	if l == nil {
		l = &keyLock{}
		k.used[key] = l
	}
	l.users++
	k.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.used, key)
		}
	}
}
