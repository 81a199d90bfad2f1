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

	filling sync.Mutex   // held while regions are filled. Taken before Registry.mu and the rails' locks
	unready atomic.Int32 // regions that wait or are being filled

	list  []*Region // under Registry.mu
	empty []*Region // the memory of the list before; under filling
}

// add adds a region. Registry.mu is held.
func (l *later) add(r *Region) {
	l.list = append(l.list, r)
	l.unready.Add(1)
}
