package transfer

// The table of transfers and their state machine. The payload decides what a transfer posts, and where.
//
// Handles cross the C boundary as integers {index, generation}. The generation identifies stale handles: it grows with every
// use of a slot. A slot whose generations are used up is not used again.

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// Handle identifies a transfer. The zero value identifies none.
type Handle struct {
	Index uint32
	Gen   uint32 // never 0 in a valid handle
}

// Uint64 packs the handle: generation in the upper half, index in the lower. A valid handle is never 0.
func (h Handle) Uint64() uint64 { return uint64(h.Gen)<<32 | uint64(h.Index) }

// FromUint64 is the inverse of Uint64. It accepts any value; Get checks it.
func FromUint64(v uint64) Handle { return Handle{Index: uint32(v), Gen: uint32(v >> 32)} }

// String returns "index.generation".
func (h Handle) String() string { return fmt.Sprintf("%d.%d", h.Index, h.Gen) }

// Errors of the table.
var (
	ErrFull  = errors.New("too many transfers: release some, the table holds 1,048,576")
	ErrStale = errors.New("stale or unknown transfer handle")
)

const (
	pageBits = 8
	pageLen  = 1 << pageBits
	maxPages = 1 << 12
	notIn    = -1
)

// Record is one transfer. A pointer stays valid after Free, but the state no longer changes.
type Record[T any] struct {
	Value T // the owner's; the table does not use it

	handle Handle
	state  atomic.Uint32

	// guarded by Table.mu
	active int // index in Table.active, or notIn
}

// Handle returns the handle of the record.
func (r *Record[T]) Handle() Handle { return r.handle }

// State returns the present state, which may change right after.
func (r *Record[T]) State() RecordState { return RecordState(r.state.Load()) }

type page[T any] [pageLen]atomic.Pointer[Record[T]]

// Records holds the transfers of an engine. All methods are safe for concurrent use. Get takes no lock.
type Records[T any] struct {
	pages [maxPages]atomic.Pointer[page[T]] // written under mu, read without

	Woken func() // called when a transfer becomes active, and none was; it must not wait. nil: nobody wants to know. Constant

	mu     sync.Mutex
	gens   []uint32 // last generation of each slot
	free   queue    // slots to use again, oldest first
	live   int
	active []*Record[T]
}

// NewRecords makes an empty table.
func NewRecords[T any]() *Records[T] { return &Records[T]{} }

// Alloc adds an idle transfer. ErrFull: the table holds 1,048,576 transfers.
func (t *Records[T]) Alloc(value T) (*Record[T], error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.free.pop()
	if !ok {
		if len(t.gens) == maxPages*pageLen {
			return nil, ErrFull
		}
		i = uint32(len(t.gens))
		t.gens = append(t.gens, 0)
		if i%pageLen == 0 {
			t.pages[i>>pageBits].Store(new(page[T]))
		}
	}
	t.gens[i]++
	r := &Record[T]{Value: value, handle: Handle{Index: i, Gen: t.gens[i]}, active: notIn}
	t.pages[i>>pageBits].Load()[i%pageLen].Store(r)
	t.live++
	return r, nil
}

// Get returns a live record. ErrStale: the generation of the handle is old, or was never used.
func (t *Records[T]) Get(h Handle) (*Record[T], error) {
	if p := h.Index >> pageBits; p < maxPages {
		if page := t.pages[p].Load(); page != nil {
			if r := page[h.Index%pageLen].Load(); r != nil && r.handle == h {
				return r, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: %v", ErrStale, h)
}

// Free removes the record from the table and from the active set. Its handle is stale afterwards. ErrStale: it was freed
// before. The owner calls Free once no operation of the transfer is posted.
func (t *Records[T]) Free(r *Record[T]) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if RecordState(r.state.Swap(uint32(Freed))) == Freed {
		return fmt.Errorf("%w: %v", ErrStale, r.handle)
	}
	t.deactivate(r)
	i := r.handle.Index
	t.pages[i>>pageBits].Load()[i%pageLen].Store(nil)
	t.live--
	if r.handle.Gen != math.MaxUint32 { // otherwise the slot has no generation left
		t.free.push(i)
	}
	return nil
}

// Len is the number of live records.
func (t *Records[T]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live
}

func (t *Records[T]) activate(r *Record[T]) {
	if r.active == notIn {
		if t.Woken != nil && len(t.active) == 0 {
			t.Woken()
		}
		r.active = len(t.active)
		t.active = append(t.active, r)
	}
}

func (t *Records[T]) deactivate(r *Record[T]) {
	if r.active == notIn {
		return
	}
	last := len(t.active) - 1
	moved := t.active[last]
	t.active[r.active] = moved
	moved.active = r.active
	t.active[last] = nil
	t.active = t.active[:last]
	r.active = notIn
}

// queue is a FIFO of slot numbers. FIFO order keeps a freed slot unused for as long as possible.
type queue struct {
	list []uint32
	head int
}

func (q *queue) push(i uint32) { q.list = append(q.list, i) }

func (q *queue) pop() (uint32, bool) {
	if q.head == len(q.list) {
		return 0, false
	}
	i := q.list[q.head]
	q.head++
	if q.head >= 1024 && q.head*2 >= len(q.list) {
		q.list = append(q.list[:0], q.list[q.head:]...)
		q.head = 0
	}
	return i, true
}

// RecordState is the state of a transfer in Go. The core's slot says whether it is in progress and how its last run ended.
//
//	        Begin             Post
//	Idle ----------> Queued -------> Posted
//	  ^                |  ^            | |
//	  |                |  +-- Begin ---+ |
//	  +---- Retire ----+-----------------+
//
//	any -> Freed (Free)
//
// A transfer is active from Begin until Retire or Free: it may have operations in flight. An ended transfer stays Posted and
// active until it is posted again or retired. Posting it again takes no lock. The agent's release changes no state here:
// operations in flight must drain before Free.
type RecordState uint32

// The states of a transfer.
const (
	Idle   RecordState = iota // never posted, or ended and retired
	Queued                    // posted by the agent; waits for the peer or for keys, nothing is on the wire
	Posted                    // handed to the core
	Freed                     // its handle is stale
)

var stateNames = [...]string{"idle", "queued", "posted", "freed"}

// String returns the lower-case name for logs.
func (s RecordState) String() string {
	if int(s) >= len(stateNames) {
		return fmt.Sprintf("state(%d)", uint32(s))
	}
	return stateNames[s]
}

// Begin makes the transfer Queued and active, because the agent posts it. False: it is Queued already, or freed.
func (t *Records[T]) Begin(r *Record[T]) bool {
	if r.transition(Posted, Queued) {
		return true // still active
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !r.transition(Idle, Queued) && !r.transition(Posted, Queued) {
		return false
	}
	t.activate(r)
	return true
}

// Post marks a Queued transfer as handed to the core. Only one caller wins a race for it. Post takes no lock.
func (r *Record[T]) Post() bool { return r.transition(Queued, Posted) }

// Retire makes the transfer Idle and inactive, after it has ended or left the queue. False: it was not active.
func (t *Records[T]) Retire(r *Record[T]) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !r.transition(Posted, Idle) && !r.transition(Queued, Idle) {
		return false
	}
	t.deactivate(r)
	return true
}

func (r *Record[T]) transition(from, to RecordState) bool {
	return r.state.CompareAndSwap(uint32(from), uint32(to))
}

// ActiveLen is the number of transfers that may have operations in flight.
func (t *Records[T]) ActiveLen() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.active)
}

// EachActive calls f for every active transfer, in no order, under the table's lock. f must be quick and must not call the
// table. f returns false to stop. A transfer costs 3.4 ns [m], so a search for users of a region needs no index.
func (t *Records[T]) EachActive(f func(*Record[T]) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.active {
		if !f(r) {
			return
		}
	}
}

// CollectActive returns the active transfers that match now. match runs under the table's lock (see EachActive). The caller
// uses the result without that lock.
func (t *Records[T]) CollectActive(match func(*Record[T]) bool) []*Record[T] {
	var out []*Record[T]
	t.EachActive(func(r *Record[T]) bool {
		if match(r) {
			out = append(out, r)
		}
		return true
	})
	return out
}
