package peer

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
	"gorail/backend/wire"
)

// watches are all watched processes of this process's engines. Engines that have the same peer share its pidfd, and all share one goroutine: a
// goroutine each took 2 to 8 KiB.
var watches watchList

// watchList watches processes. It has an epoll descriptor and a goroutine while it has a process.
type watchList struct {
	mu    sync.Mutex
	all   map[wire.Process]*watched
	byFD  map[int32]*watched
	epoll *os.File // nil: nothing is watched
}

// watched is a process that has not ended.
type watched struct {
	process wire.Process
	pidfd   int
	ended   map[*func()]bool // what is to be called
}

// watchProcess calls ended once, in a goroutine of its own, when a process of our pid namespace ends; stop ends the watch. alive is false, and nothing will be called,
// if the process has ended already.
func watchProcess(p wire.Process, ended func()) (stop func(), alive bool, err error) {
	return watches.watch(p, ended)
}

func (l *watchList) watch(p wire.Process, ended func()) (stop func(), alive bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.all[p]
	if w == nil {
		if w, err = l.add(p); w == nil {
			return nil, false, err
		}
	}
	w.ended[&ended] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if delete(w.ended, &ended); len(w.ended) == 0 && l.all[p] == w {
			l.remove(w)
		}
	}, true, nil
}

// add begins to watch a process; nil: it has ended, or there is an error. It needs mu.
func (l *watchList) add(p wire.Process) (*watched, error) {
	fd, err := openProcess(p)
	if err != nil || fd < 0 {
		return nil, err
	}
	if err := l.begin(); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	fd = host.SharePidfd(int(p.PID), fd)
	w := &watched{p, fd, map[*func()]bool{}}
	l.all[p], l.byFD[int32(fd)] = w, w
	if err := l.control(unix.EPOLL_CTL_ADD, fd); err != nil {
		l.remove(w)
		return nil, fmt.Errorf("epoll_ctl: %w", err)
	}
	return w, nil
}

// begin starts the goroutine, if it does not run. It needs mu.
func (l *watchList) begin() error {
	if l.epoll != nil {
		return nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that Go waits on it
		_ = unix.Close(fd)
		return fmt.Errorf("fcntl: %w", err)
	}
	l.epoll = os.NewFile(uintptr(fd), "epoll")
	raw, err := l.epoll.SyscallConn()
	if err == nil {
		err = l.epoll.SetReadDeadline(time.Time{}) // an error if Go cannot wait on it: run would end at once
	}
	if err != nil {
		_ = l.epoll.Close()
		l.epoll = nil
		return err
	}
	l.all, l.byFD = map[wire.Process]*watched{}, map[int32]*watched{}
	go l.run(l.epoll, raw)
	return nil
}

// remove ends the watch of a process. It needs mu. Others may hold the pidfd, such as a child of fork: so close alone may not end its events.
func (l *watchList) remove(w *watched) {
	_ = l.control(unix.EPOLL_CTL_DEL, w.pidfd)
	host.ReleasePidfd(w.pidfd)
	delete(l.all, w.process)
	delete(l.byFD, int32(w.pidfd))
	if len(l.all) == 0 {
		_ = l.epoll.Close() // ends the goroutine
		l.epoll = nil
	}
}

// control calls epoll_ctl. It needs mu.
func (l *watchList) control(op, fd int) error {
	raw, err := l.epoll.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(epoll uintptr) {
		err = unix.EpollCtl(int(epoll), op, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	}); e != nil {
		return e
	}
	return err
}

// run waits for ends until the descriptor is closed.
func (l *watchList) run(epoll *os.File, raw syscall.RawConn) {
	for {
		var events [64]unix.EpollEvent
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events[:], 0)
			return n > 0
		})
		if err != nil {
			return
		}
		for _, call := range l.ends(epoll, events[:n]) {
			go call()
		}
	}
}

// ends removes the processes of events, and returns what is to be called.
func (l *watchList) ends(epoll *os.File, events []unix.EpollEvent) (calls []func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ev := range events {
		w := l.byFD[ev.Fd]
		if l.epoll != epoll || w == nil || !host.ProcessEnded(w.pidfd) { // removed meanwhile, and the number may be another process's by now
			continue
		}
		for call := range w.ended {
			calls = append(calls, *call)
		}
		l.remove(w)
	}
	return calls
}
