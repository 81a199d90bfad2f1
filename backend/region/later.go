package region

import (
	"sync"
	"sync/atomic"
	"time"
)

// later holds the regions that no rail has been asked about. The application is not kept waiting for what cannot fail its
// registration.
type later struct {
	After func(d time.Duration, f func()) // calls f after d; nil: no region waits
	armed atomic.Bool                     // After was called, and f was not

	filling sync.Mutex   // held while regions are filled. Taken before mu and the rails' locks; not with Registry.mu
	unready atomic.Int32 // regions that wait or are being filled

	mu    sync.Mutex // taken last
	list  []*Region
	empty []*Region // the memory of the list before
}

// add adds a region. Registry.mu may be held.
func (l *later) add(r *Region) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, r)
	l.unready.Add(1)
}
