package ofi

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
	"gorail/backend/provider/ofi/sockets"
)

// rail implements provider.Rail: one domain with its address vector and completion queue. Locks, in their order: endpoint.mu or mu,
// lookout.mu, setup, the C rail's.
type rail struct {
	dev    provider.Device
	entry  *entry
	quirks quirks
	caps   caps
	notes  []string
	c      *libfabric.Rail // what the core posts to and polls; its lock guards it

	mu     sync.Mutex
	closed bool
	news   news

	look     lookout
	sweeping atomic.Bool // a sweep is due

	setup     sync.Mutex    // for what follows; hold takes it round the C rail's lock
	files     sockets.Files // of the process, for who holds the rail
	ports     ports
	peers     peers
	openEPs   int
	listening map[sockets.Name]*libfabric.Endpoint // those with a filter
	noFilter  error                                // why a listening socket has none; nil: all have
}

var _ provider.Warner = (*rail)(nil)

func (r *rail) Device() provider.Device { return r.dev }
func (r *rail) Caps() provider.Caps     { return r.caps.Caps }
func (r *rail) Notes() []string         { return r.notes }
func (r *rail) Core() unsafe.Pointer    { return r.c.Core() }

func (r *rail) lib() *libfabric.Library { return r.entry.Library() }

// how is what endpoints are asked for.
func (r *rail) how() libfabric.Options {
	return libfabric.Options{NoDetours: !r.quirks.perPeer, P2P: r.entry.HMEM}
}

// hold runs f with the rail's lock (libfabric.Rail.Hold) and setup.
func (r *rail) hold(f func()) {
	r.setup.Lock()
	defer r.setup.Unlock()
	r.c.Hold(f)
}

func (r *rail) error(phase, err error) error {
	err = fmt.Errorf("%w: %s/%s: %w", phase, r.dev.Fabric, r.dev.Name, err)
	if sockets.Exhausted() { // libfabric reports that as EIO at times
		err = fmt.Errorf("%w: %w", err, syscall.EMFILE)
	}
	return err
}

// Close implements fi_close of queue, address vector, domain and fabric. With endpoints or regions open it fails with
// EBUSY and changes nothing; a second Close does nothing.
func (r *rail) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if err := r.end(); err != nil {
		return r.error(provider.ErrUnusable, err)
	}
	return nil
}

// end closes what is open, unless somebody uses the rail. Under mu, or before anybody knows of the rail.
func (r *rail) end() (err error) {
	r.setup.Lock()
	defer r.setup.Unlock()
	if r.closed, err = r.c.Close(r.openEPs); r.closed {
		r.files.Close()
		r.look.files.Close()
		r.c.Free()
	}
	return err
}

// news is what the log is told of a rail.
type news struct {
	said     bool   // that listening sockets can't be filtered
	turned   uint64 // connections turned away, as told last
	turnedAt time.Time
}

const logEvery = time.Minute

// Warnings implements provider.Warner.
func (r *rail) Warnings() (news []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.setup.Lock()
	unfit := r.noFilter
	r.setup.Unlock()
	turned := r.c.TurnedAway()
	if unfit != nil && !r.news.said {
		r.news.said = true
		news = append(news, fmt.Sprintf("its listening sockets take connections from any address, and libfabric's tcp trusts those: "+
			"no filter could be set (%v); close its ports to unauthenticated by a firewall (option data_port)", unfit))
	}
	if turned > r.news.turned && time.Since(r.news.turnedAt) > logEvery {
		news = append(news, fmt.Sprintf("%d connections of peers were reset: the process has no file descriptor left for them: raise the limit with ulimit -n",
			turned-r.news.turned))
		r.news.turned, r.news.turnedAt = turned, time.Now()
	}
	return news
}
