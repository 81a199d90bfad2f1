package session

// One lock for each key.

import "sync"

// Locks is a set of locks, one per key. A caller waits only for callers with the same key. The zero value is ready.
type Locks[K comparable] struct {
	mu   sync.Mutex
	used map[K]*lock
}

type lock struct {
	sync.Mutex
	users int // holders and waiters; guarded by Locks.mu
}

// Lock takes the key's lock. The caller calls unlock once.
func (k *Locks[K]) Lock(key K) (unlock func()) {
	k.mu.Lock()
	if k.used == nil {
		k.used = map[K]*lock{}
	}
	l := k.used[key]
	if l == nil {
		l = &lock{}
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
