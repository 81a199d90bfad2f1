// Package mr keeps memory registrations: a reference-counted cache of address ranges, and an allocator of keys. The caller's
// registrar does the registering.
package mr

import (
	"errors"
	"fmt"
	"sync"
)

// Errors of Acquire and Release, besides those of the registrar.
var (
	ErrWraps    = errors.New("range runs past the end of the address space")
	ErrReleased = errors.New("registration was released before")
	ErrPanic    = errors.New("registrar panicked")
)

// Registrar registers memory; H is the handle of a registration. Calls come without a lock, for different ranges in parallel.
type Registrar[H any] interface {
	Register(addr, length uint64) (H, error)
	Unregister(h H) error
}

// Outcome is the effect of a Release on the registration.
type Outcome int

// The outcomes of Release.
const (
	Kept    Outcome = iota // other users remain
	Retired                // only users of ranges inside remain; the registration takes no new users
	Closed                 // unregistered
	Nothing                // the range was empty: no registration existed
)

// Sharing is what a Cache shares.
type Sharing int

// The kinds of sharing.
const (
	Around Sharing = iota // registrations of the same range, and of ranges around
	Exact                 // registrations of the same range alone: a key never gives more than its range
)

// Cache shares registrations between ranges.
//
//   - The same range again shares the registration. So does, with Around, a range inside one that has an owner (a user of the
//     whole range).
//   - When the last owner releases its range, the registration is retired. Users of ranges inside keep it alive. It gets no new
//     users, because the memory around those ranges may be unmapped, and mapped again, from then on.
//   - A retired registration is closed with its last user.
//
// Lookups take O(log n). A Cache is safe for concurrent use.
type Cache[H any] struct {
	registrar Registrar[H]
	sharing   Sharing

	mu      sync.Mutex
	live    tree[H] // entries with an owner, at most one per range
	count   int
	retired int
}

// entry is one registration. Cache.mu guards it, except handle and err, which are written before ready.
type entry[H any] struct {
	addr, last uint64        // first and last byte
	owners     int           // users of exactly this range
	partial    int           // users of ranges inside
	ready      bool          // the registrar has answered
	waiters    chan struct{} // closed when ready; nil: nobody waits
	handle     H
	err        error
}

// first is what the first user of a range allocates.
type first[H any] struct {
	entry entry[H]
	node  node[H]
	ref   Ref[H]
}

// Ref is one acquired range. It ends with Release.
type Ref[H any] struct {
	entry *entry[H] // nil for an empty range
	owner bool
	done  bool // guarded by Cache.mu
}

// Handle returns the handle of the registration; false: the range is empty and has none.
func (r *Ref[H]) Handle() (h H, ok bool) {
	if r.entry == nil {
		return h, false
	}
	return r.entry.handle, true
}

// Range returns the registered range: the acquired range, or one around it. It returns zeros for an empty range.
func (r *Ref[H]) Range() (addr, length uint64) {
	if r.entry == nil {
		return 0, 0
	}
	return r.entry.addr, r.entry.last - r.entry.addr + 1
}

// NewCache makes an empty cache.
func NewCache[H any](registrar Registrar[H], sharing Sharing) *Cache[H] {
	return &Cache[H]{registrar: registrar, sharing: sharing}
}

// Acquire returns a registration that covers length bytes at addr. It registers only if no registration can be shared; reused
// tells if one was shared. If another goroutine is registering the same range, or one around it, Acquire waits for that.
// Errors: ErrWraps, ErrPanic, and the registrar's. All waiters for the same range get the registrar's error. The caller owns
// the Ref and releases it.
func (c *Cache[H]) Acquire(addr, length uint64) (ref *Ref[H], reused bool, err error) {
	if length == 0 {
		return &Ref[H]{}, false, nil
	}
	last := addr + length - 1
	if addr+length < addr {
		return nil, false, fmt.Errorf("%w: %d bytes at %#x", ErrWraps, length, addr)
	}
	for {
		ref, wait, fresh := c.join(addr, last)
		if fresh {
			err := c.register(ref.entry)
			if err != nil {
				return nil, false, err
			}
			return ref, false, nil
		}
		if wait != nil {
			<-wait
		}
		switch err := ref.entry.err; {
		case err == nil:
			return ref, true, nil
		case ref.owner:
			return nil, false, err
		}
		// The range around could not be registered. Try this range alone.
	}
}

// join finds an entry to share, or adds a new one that the caller registers. wait is closed when the entry is ready; nil: it is.
func (c *Cache[H]) join(addr, last uint64) (ref *Ref[H], wait <-chan struct{}, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.live.find(addr, last); e != nil {
		e.owners++
		return &Ref[H]{entry: e, owner: true}, e.wait(), false
	}
	if c.sharing == Around {
		if e := c.live.cover(addr, last); e != nil {
			e.partial++
			return &Ref[H]{entry: e}, e.wait(), false
		}
	}
	f := &first[H]{entry: entry[H]{addr: addr, last: last, owners: 1}}
	f.node.entry = &f.entry
	f.ref = Ref[H]{entry: &f.entry, owner: true}
	c.live.insert(&f.node)
	c.count++
	return &f.ref, nil, true
}

// wait returns a channel that is closed when the entry is ready; nil: it is. Under mu.
func (e *entry[H]) wait() <-chan struct{} {
	if !e.ready && e.waiters == nil {
		e.waiters = make(chan struct{})
	}
	if e.ready {
		return nil
	}
	return e.waiters
}

// register fills a new entry and wakes its waiters. A failed entry leaves the index before they wake.
func (c *Cache[H]) register(e *entry[H]) error {
	e.err = ErrPanic
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if e.err != nil {
			c.live.remove(e)
			c.count--
		}
		if e.ready = true; e.waiters != nil {
			close(e.waiters)
		}
	}()
	e.handle, e.err = c.registrar.Register(e.addr, e.last-e.addr+1)
	return e.err
}

// Release ends a use. The last one unregisters; err is then the registrar's, and the registration counts as closed in any case.
// ErrReleased: the Ref was released before, and nothing has changed.
func (c *Cache[H]) Release(ref *Ref[H]) (Outcome, error) {
	outcome, err := c.leave(ref)
	if outcome == Closed && err == nil {
		err = c.registrar.Unregister(ref.entry.handle)
	}
	return outcome, err
}

func (c *Cache[H]) leave(ref *Ref[H]) (Outcome, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := ref.entry
	switch {
	case ref.done:
		return Nothing, ErrReleased
	case e == nil:
		ref.done = true
		return Nothing, nil
	}
	ref.done = true
	outcome := Kept
	if ref.owner {
		if e.owners--; e.owners == 0 {
			c.live.remove(e)
			c.count--
			c.retired++
			outcome = Retired
		}
	} else {
		e.partial--
	}
	if e.owners == 0 && e.partial == 0 {
		c.retired--
		outcome = Closed
	}
	return outcome, nil
}

// Len returns the number of live and of retired registrations.
func (c *Cache[H]) Len() (live, retired int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count, c.retired
}
