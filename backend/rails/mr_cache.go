package rails

// Memory registrations: a reference-counted cache of address ranges, and an allocator of keys. The caller's
// functions register.

import (
	crypto "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
)

// Errors of Acquire and Release, besides those of registering.
var (
	ErrWraps    = errors.New("range runs past the end of the address space")
	ErrReleased = errors.New("registration was released before")
	ErrPanic    = errors.New("registering panicked")
)

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
	Alone                 // nothing: each range is registered
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
	registerMemory   func(addr, length uint64) (H, error)
	unregisterMemory func(h H) error
	sharing          Sharing

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
	ready      bool          // it is registered, or refused
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

// NewCache makes an empty cache. register and unregister are called without a lock, for different ranges in parallel. H is the handle of a
// registration.
func NewCache[H any](register func(addr, length uint64) (H, error), unregister func(H) error, sharing Sharing) *Cache[H] {
	return &Cache[H]{registerMemory: register, unregisterMemory: unregister, sharing: sharing}
}

// Acquire returns a registration that covers length bytes at addr. It registers only if no registration can be shared; reused
// tells if one was shared. If another goroutine is registering the same range, or one around it, Acquire waits for that.
// Errors: ErrWraps, ErrPanic, and that of register. All waiters for the same range get that. The caller owns
// the Ref and releases it.
func (c *Cache[H]) Acquire(addr, length uint64) (ref *Ref[H], reused bool, err error) {
	if length == 0 {
		return &Ref[H]{}, false, nil
	}
	last := addr + length - 1
	if addr+length < addr {
		return nil, false, fmt.Errorf("%w: %d bytes at %#x", ErrWraps, length, addr)
	}
	if c.sharing == Alone {
		h, err := c.registerMemory(addr, length)
		if err != nil {
			return nil, false, err
		}
		return c.Adopt(addr, length, h), false, nil
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

// alone is what a range allocates whose registration is not shared.
type alone[H any] struct {
	entry entry[H]
	ref   Ref[H]
}

// Adopt returns a use of a registration that the caller has made. The Cache shares nothing (Alone), and ends it with Release.
func (c *Cache[H]) Adopt(addr, length uint64, h H) *Ref[H] {
	a := &alone[H]{entry: entry[H]{addr: addr, last: addr + length - 1, owners: 1, ready: true, handle: h}}
	a.ref = Ref[H]{entry: &a.entry, owner: true}
	c.mu.Lock()
	c.count++
	c.mu.Unlock()
	return &a.ref
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
	e.handle, e.err = c.registerMemory(e.addr, e.last-e.addr+1)
	return e.err
}

// Release ends a use. The last one unregisters; err is then that of unregister, and the registration counts as closed in any case.
// ErrReleased: the Ref was released before, and nothing has changed.
func (c *Cache[H]) Release(ref *Ref[H]) (Outcome, error) {
	outcome, err := c.leave(ref)
	if outcome == Closed && err == nil {
		err = c.unregisterMemory(ref.entry.handle)
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
			if c.sharing != Alone {
				c.live.remove(e)
			}
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

// tree is a treap of entries, ordered by first byte, then by last byte. Each node has the highest last byte of its subtree, so
// that a range around another one is found in O(log n).
type tree[H any] struct{ root *node[H] }

type node[H any] struct {
	*entry[H]
	left, right *node[H]
	priority    uint32
	maxLast     uint64 // highest last byte of the subtree
}

// before orders ranges.
func before(addr, last, addr2, last2 uint64) bool {
	return addr < addr2 || addr == addr2 && last < last2
}

func (n *node[H]) update() {
	n.maxLast = n.last
	if n.left != nil {
		n.maxLast = max(n.maxLast, n.left.maxLast)
	}
	if n.right != nil {
		n.maxLast = max(n.maxLast, n.right.maxLast)
	}
}

// find returns the entry of exactly [addr, last], or nil.
func (t *tree[H]) find(addr, last uint64) *entry[H] {
	for n := t.root; n != nil; {
		switch {
		case n.addr == addr && n.last == last:
			return n.entry
		case before(addr, last, n.addr, n.last):
			n = n.left
		default:
			n = n.right
		}
	}
	return nil
}

// cover returns an entry that contains [addr, last], or nil.
func (t *tree[H]) cover(addr, last uint64) *entry[H] {
	for n := t.root; n != nil && n.maxLast >= last; {
		switch {
		case n.addr > addr:
			n = n.left
		case n.last >= last:
			return n.entry
		case n.left != nil && n.left.maxLast >= last:
			n = n.left // all of the left subtree starts at or before addr, so its entry with that last byte covers the range
		default:
			n = n.right
		}
	}
	return nil
}

// insert adds an entry whose range is not in the tree.
func (t *tree[H]) insert(n *node[H]) {
	n.priority = rand.Uint32()
	n.left, n.right = split(t.root, n.addr, n.last)
	n.update()
	// n is the root of both halves now; move it down to its priority
	t.root = sink(n)
}

// remove removes an entry, which must be in the tree.
func (t *tree[H]) remove(e *entry[H]) { t.root = removeFrom(t.root, e) }

// split divides a treap into the entries before the range, and the rest.
func split[H any](n *node[H], addr, last uint64) (l, r *node[H]) {
	if n == nil {
		return nil, nil
	}
	if before(n.addr, n.last, addr, last) {
		n.right, r = split(n.right, addr, last)
		n.update()
		return n, r
	}
	l, n.left = split(n.left, addr, last)
	n.update()
	return l, n
}

// join merges two treaps; all of l is before all of r.
func join[H any](l, r *node[H]) *node[H] {
	switch {
	case l == nil:
		return r
	case r == nil:
		return l
	case l.priority >= r.priority:
		l.right = join(l.right, r)
		l.update()
		return l
	default:
		r.left = join(l, r.left)
		r.update()
		return r
	}
}

// sink moves a node with the two halves of a treap down to its priority.
func sink[H any](n *node[H]) *node[H] {
	l, r := n.left, n.right
	n.left, n.right = nil, nil
	n.update()
	return join(join(l, n), r)
}

func removeFrom[H any](n *node[H], e *entry[H]) *node[H] {
	switch {
	case n == nil:
		return nil
	case n.entry == e:
		return join(n.left, n.right)
	case before(e.addr, e.last, n.addr, n.last):
		n.left = removeFrom(n.left, e)
	default:
		n.right = removeFrom(n.right, e)
	}
	n.update()
	return n
}

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
	_, _ = crypto.Read(b[:]) // never fails
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
