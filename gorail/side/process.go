package side

import (
	"runtime"
	"sync"
	"time"

	"gorail/internal/procstat"
)

// threads makes the Go runtime start its threads now, so that later threads are the backend's.
func threads(n int) {
	var all, here sync.WaitGroup
	here.Add(n)
	for range n {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			here.Done()
			here.Wait()
		})
	}
	all.Wait()
}

// countFDs returns the number of open descriptors of the process.
func countFDs() int {
	fds, _ := procstat.FDs()
	return len(fds)
}

// usage returns the number of threads and the resident memory in MiB.
func usage() (threads int, mib float64) {
	u, _ := procstat.Self()
	return u.Threads, float64(u.RSSKiB) / 1024
}

// watch samples the size of the process ten times a second.
type watch struct {
	threads0 int
	mib0     float64

	mu  sync.Mutex // guards top
	top Stats
}

func startWatch() *watch {
	w := &watch{}
	w.threads0, w.mib0 = usage()
	go func() {
		for {
			w.look()
			time.Sleep(100 * time.Millisecond)
		}
	}()
	return w
}

func (w *watch) look() {
	t, m := usage()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.top.Threads, w.top.MiB = max(w.top.Threads, t-w.threads0), max(w.top.MiB, m-w.mib0)
}

// peak returns the largest growth since the start.
func (w *watch) peak() Stats {
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.top
	s.CPU = procstat.CPUTime()
	return s
}
