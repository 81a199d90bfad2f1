package statsfile

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
)

// terms are the calls to make when SIGTERM ends the process.
var terms struct {
	mu    sync.Mutex
	calls map[*func()]struct{}
	quit  chan os.Signal // nil: the signal is the host's
}

// OnTerm calls write when SIGTERM is about to end the process, and then lets it. stop ends this. A host that has a handler
// of its own for SIGTERM, or ignores it, keeps that: then write is not called.
func OnTerm(write func()) (stop func()) {
	terms.mu.Lock()
	defer terms.mu.Unlock()
	if terms.calls == nil {
		terms.calls = map[*func()]struct{}{}
	}
	if terms.quit == nil && unhandled() {
		terms.quit = make(chan os.Signal, 1)
		signal.Notify(terms.quit, syscall.SIGTERM)
		go await(terms.quit)
	}
	key := &write
	terms.calls[key] = struct{}{}
	return func() {
		terms.mu.Lock()
		defer terms.mu.Unlock()
		delete(terms.calls, key)
		if len(terms.calls) == 0 && terms.quit != nil {
			signal.Stop(terms.quit) // gives the signal back
			close(terms.quit)
			terms.quit = nil
		}
	}
}

// await makes the calls, and ends the process as SIGTERM would have.
func await(quit chan os.Signal) {
	if _, ok := <-quit; !ok {
		return
	}
	terms.mu.Lock()
	var wg sync.WaitGroup
	for write := range terms.calls {
		wg.Go(*write)
	}
	terms.mu.Unlock()
	wg.Wait()
	signal.Reset(syscall.SIGTERM)
	_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
}

// unhandled reports that SIGTERM has its default action. A variable for tests: a Go program handles the signal itself, unlike
// a Go library. Reads SigCgt and SigIgn of /proc/self/status.
var unhandled = func() bool {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	var masks uint64
	for line := range strings.Lines(string(b)) {
		var mask uint64
		if name, value, _ := strings.Cut(line, ":"); name == "SigCgt" || name == "SigIgn" {
			if _, err := fmt.Sscanf(value, "%x", &mask); err != nil {
				return false
			}
			masks |= mask
		}
	}
	return masks&(1<<(syscall.SIGTERM-1)) == 0
}
