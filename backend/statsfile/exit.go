package statsfile

import (
	"sync"
	"time"
)

// last are the calls to make before the process ends.
var last struct {
	mu    sync.Mutex
	calls map[*func()]struct{}
}

// AtExit makes Exit call write. stop ends this; it waits for a call that is under way.
func AtExit(write func()) (stop func()) {
	last.mu.Lock()
	defer last.mu.Unlock()
	if last.calls == nil {
		last.calls = map[*func()]struct{}{}
	}
	key := &write
	last.calls[key] = struct{}{}
	return func() {
		last.mu.Lock()
		defer last.mu.Unlock()
		delete(last.calls, key)
	}
}

// mostAtExit limits how long the end of the process waits for the calls.
const mostAtExit = 2 * time.Second

// Exit makes the calls of AtExit, all at once. The process is about to end.
func Exit() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		last.mu.Lock()
		defer last.mu.Unlock()
		var wg sync.WaitGroup
		for write := range last.calls {
			wg.Go(*write)
		}
		wg.Wait()
	}()
	select {
	case <-done:
	case <-time.After(mostAtExit):
	}
}
