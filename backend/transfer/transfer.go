package transfer

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gorail/backend/core"
	"gorail/backend/provider"
	"gorail/backend/region"
)

// The operations of a transfer.
const (
	Read  = core.Read
	Write = core.Write
)

// Transfer is a prepared request. The application's checks read its C slot. The record keeps its state in Go.
type Transfer struct {
	tab   *Table
	rec   *Record[*Transfer]
	peer  *Peer
	x     core.Xfer
	op    int
	bytes uint64
	memory
	inner chan struct{} // of an inner transfer: receives a value when it has ended; nil: the application's transfer

	run      atomic.Pointer[Run]              // the current staged run; nil: none
	zombie   atomic.Bool                      // the agent has released it; freed once drained
	unlogged atomic.Bool                      // the path is not in the log yet; set only if the log takes debug lines
	unlinked atomic.Bool                      // an inner transfer that no link carries
	leaked   atomic.Bool                      // an endpoint was closed while a stopped process may still copy for it
	busy     atomic.Pointer[provider.GPUBusy] // an endpoint was closed while a GPU may still copy for it

	mu sync.Mutex
	routing
	post
	ending

	msg []byte // while queued in Peer.waiting; guarded by Peer.mu
}

// memory describes the memory of a transfer. Only cover changes its regions, while the core has nothing of the transfer.
type memory struct {
	here    atomic.Pointer[[]*region.Region] // local regions. Deregistrations read them without a lock
	remotes []*region.Region                 // under the session's lock, and under mu or Peer.mu: each is enough to read
	class   Class
	gpu     bool   // some region is GPU memory, or a GPU copies; class covers only the first of each side
	bulk    bool   // one post of a bulk rail, which copies GPU memory
	mixed   bool   // a side has memory of several types or GPUs
	most    uint64 // bytes that the largest operation may have; 0: rails do not limit it
}

// routing is how a transfer is carried. Under the transfer's mu.
type routing struct {
	checked uint64      // Peer.epoch at which keys and links were found usable
	looked  uint64      // region.Table.Ended at which no local region had ended
	links   []core.Link // the links that can carry the transfer, near ones first
	near    int         // how many of them are near the local memory
	session uint64      // of these links: View.Session
	staged  bool        // links cannot carry the transfer; it is always staged
	refused int         // number of runs whose links did not reach the peer's memory
	again   time.Time   // when links are tried again after too many such runs; zero: it is not staged for that reason
	rings   bool        // staged, as ready found last
}

// post is the last post of a transfer. Under the transfer's mu.
type post struct {
	hasNotif bool
	posted   time.Time     // when it was last queued; the core records when it starts
	sampled  time.Duration // the post whose time is in Peer.rates
	restart  restart
	reposts  uint64 // posts without Go that the log has, as a count
}

// restart is the reason to start a stopped transfer again, over bounce buffers.
type restart int

const (
	noRestart    restart = iota
	slowToMap            // mapping the peer's memory takes too long
	withoutRails         // the rails that reach the memory are down
	renewed              // the peer has other memory there
)

// ending is how a post ends early. Under the transfer's mu.
type ending struct {
	reason  error     // why we aborted it
	why     error     // the error of an inner transfer, or of one that never started
	aborted time.Time // when we aborted it
	revoked time.Time // when the peer revoked memory of the transfer
	drain   time.Time // until when deregistrations wait for it; zero: none has waited
	kept    bool      // a release was refused
	began   uint32    // backs when it was started
	taken   bool      // memory was deregistered before all was posted. The transfer starts again if other registrations have the memory
	ran     *Ran      // with taken: what its staged run has done; nil: it was not staged
}

// refusals is the number of runs that may fail to map the peer's memory before the transfer stays staged. A mapping can fail
// temporarily.
const refusals = 3

// againAfter is how long such a transfer stays staged: the owner may have mapped other memory meanwhile.
const againAfter = 5 * time.Second

// Op is the operation, Bytes the size, and Ops the planned operations. They exist until the transfer is freed.
func (t *Transfer) Op() int        { return t.op }
func (t *Transfer) Bytes() uint64  { return t.bytes }
func (t *Transfer) Ops() []core.Op { return t.x.Ops() }
func (t *Transfer) Peer() *Peer    { return t.peer }

// Handle is the application's handle. Slot is the slot that the shim reads.
func (t *Transfer) Handle() uint64  { return t.rec.Handle().Uint64() }
func (t *Transfer) Slot() core.Xfer { return t.x }

// Locals are the local regions, Remotes the peer's. Regions returns all by index.
func (t *Transfer) Locals() []*region.Region  { return *t.here.Load() }
func (t *Transfer) Remotes() []*region.Region { return t.remotes }

func (t *Transfer) Regions() map[uint32]*region.Region {
	m := make(map[uint32]*region.Region, len(t.Locals())+len(t.remotes))
	for _, list := range [][]*region.Region{t.Locals(), t.remotes} {
		for _, g := range list {
			m[region.Index(g.ID)] = g
		}
	}
	return m
}

// freed reports that x no longer belongs to this transfer. Under mu the result stays true.
func (t *Transfer) freed() bool { return t.rec.State() == Freed }

// uses reports that the transfer uses a local region.
func (t *Transfer) uses(r *region.Region) bool { return slices.Contains(t.Locals(), r) }

// linksOfReadySession reports that the transfer's links in the core belong to the ready session. Links of an earlier session may be freed.
// Under t.mu and Peer.mu for reading.
func (t *Transfer) linksOfReadySession() bool {
	return t.peer.view.Session != 0 && t.session == t.peer.view.Session
}

// Busy reports that the transfer uses memory of either side: the core has data to move, or it is staged.
func (t *Transfer) Busy() bool { return !t.freed() && (t.x.InFlight() || t.run.Load() != nil) }

// mayRestart reports that a transfer has failed because its links cannot reach the peer's memory, and that nobody has ended it. changed:
// other memory is mapped there now. Under mu.
func (t *Transfer) mayRestart() (may, changed bool) {
	if t.freed() || t.inner != nil || t.reason != nil || !t.x.NeedsFinalize() {
		return false, false
	}
	_, wire := t.x.Err()
	changed = wire == syscall.EREMCHG || wire == syscall.ESTALE && t.renewed()
	return wire == syscall.ENOTSUP || changed || t.restart != noRestart, changed
}
