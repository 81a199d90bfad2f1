package side

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"gorail/test/worker"
)

// touch has every page of a buffer there before something is timed.
func touch(b []byte) {
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
}

// threads has the Go runtime start the threads that it will need now, so that later ones are the backend's.
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

func countFDs() int {
	fds, _ := os.ReadDir("/proc/self/fd")
	return len(fds)
}

// usage is the number of threads and the resident memory.
func usage() (threads int, mib float64) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		key, val, _ := strings.Cut(sc.Text(), ":")
		val = strings.TrimSpace(val)
		switch key {
		case "VmRSS":
			kib, _ := strconv.ParseFloat(strings.TrimSuffix(val, " kB"), 64)
			mib = kib / 1024
		case "Threads":
			threads, _ = strconv.Atoi(val)
		}
	}
	return threads, mib
}

// watch looks ten times a second how large the process is.
type watch struct {
	threads0 int
	mib0     float64

	mu  sync.Mutex // guards what follows
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

// peak is how much larger than at the start it was at most.
func (w *watch) peak() Stats {
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.top
	s.CPU = worker.CPUTime()
	return s
}
