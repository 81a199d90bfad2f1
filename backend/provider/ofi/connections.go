package ofi

import (
	"sync"

	"golang.org/x/sys/unix"

	"gorail/backend/provider/ofi/libfabric"
	"gorail/backend/provider/ofi/sockets"
)

// What libfabric forgets when an endpoint of its tcp family closes.
//
// An accepted connection that has not introduced itself yet keeps a pointer to the endpoint it came in by, and the next
// poll follows it into freed memory (all releases 1.17 .. 2.6; its source says so). And net 1.17 frees and reports twice
// the READ whose answer is coming in while its endpoint closes, after which operations share records; a connection that
// breaks by itself is handled well. So before an endpoint goes, its connections are broken: they show in no part of the
// API and are found among the process's sockets, by our port or by the peer's. They are shut down and emptied, and
// libfabric is let notice.
//
// A look at all descriptors takes milliseconds where there are thousands. So nobody waits for it: it is made without the rail's lock, and
// one look serves all endpoints that are being closed.

// search is for the sockets of one endpoint.
type search struct {
	own, peer       sockets.Name // peer: the zero name where there is none
	listener        int          // -1: not found
	fds             []int        // what may be the endpoint's
	later           bool         // more connections may be accepted than were found
	looked          bool         // the look is over
	found           int          // in this pass, not seen to by libfabric yet
	shut            bool         // the listener is among them
	unauthenticated []int        // those of which libfabric must get rid before the endpoint goes
}

// lookout makes one look for all who call at a time.
type lookout struct {
	files sockets.Files // whose turn it is

	mu      sync.Mutex // above the rail's lock
	over    sync.Cond
	wanted  []*search
	looking bool
}

// find looks for an endpoint's sockets, without the rail's lock.
func (l *lookout) find(rail *libfabric.Rail, own *search) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanted = append(l.wanted, own)
	for !own.looked {
		if l.looking {
			l.over.Wait()
			continue
		}
		batch := l.wanted
		l.wanted, l.looking = nil, true
		l.mu.Unlock()
		lookFor(l.files, rail, batch)
		l.mu.Lock()
		l.looking = false
		for _, s := range batch {
			s.looked = true
		}
		l.over.Broadcast()
	}
}

// lookFor finds the sockets of all. Once an endpoint hears nothing more, no connection waits, and nobody is polling who may just have accepted
// one, all its connections are there.
func lookFor(files sockets.Files, rail *libfabric.Rail, batch []*search) {
	byOwn, byPeer, hosts := make(map[sockets.Name][]*search), make(map[sockets.Name][]*search), make(map[sockets.Name]bool)
	for _, s := range batch {
		byOwn[s.own] = append(byOwn[s.own], s)
		hosts[s.own.Host()] = true
		if s.peer != (sockets.Name{}) {
			byPeer[s.peer] = append(byPeer[s.peer], s)
		}
	}
	failed := files.Each(func(fd int) bool {
		own, _ := sockets.Own(fd)
		for _, s := range byOwn[own] {
			if sockets.Listens(fd) {
				s.listener = fd
			}
		}
		return true
	})
	for _, s := range batch {
		s.later = failed != nil || !deafen(s.listener) || sockets.Backlog(s.listener)
	}
	rail.Pass()
	failed = files.Each(func(fd int) bool {
		own, ok := sockets.Own(fd)
		for _, s := range byOwn[own] {
			s.fds = append(s.fds, fd)
		}
		if !ok || !hosts[own.Host()] {
			return true
		}
		peer, _ := sockets.Peer(fd)
		for _, s := range byPeer[peer] {
			if own != s.own && own.Host() == s.own.Host() {
				s.fds = append(s.fds, fd)
			}
		}
		return true
	})
	for _, s := range batch {
		s.later = s.later || failed != nil
	}
}

// deafen drops whatever comes to the socket. To shut it down would keep libfabric busy with it until the endpoint closes.
func deafen(fd int) bool { return fd >= 0 && sockets.Filter(fd, sockets.Admitting()) == nil }

// breakAll breaks the connections that were found. Completions stay in the queue. Under hold: nothing is accepted meanwhile, as libfabric does
// that when it is polled. open: how many endpoints the rail has.
func (s *search) breakAll(rail *libfabric.Rail, files sockets.Files, open int) {
	const rounds, events = 8, 64 // one round is enough, as a rule; what one poll looks at, or less
	if s.later {
		_ = files.Each(func(fd int) bool { s.visit(fd); return true })
	} else {
		for _, fd := range s.fds {
			s.visit(fd)
		}
	}
	if s.found == 1 && s.shut {
		s.found = 0 // the listener: libfabric closes it, and need not notice
	}
	for i := 0; i < rounds && (s.found > 0 || len(s.unauthenticated) > 0); i++ {
		unauthenticated := s.unauthenticated
		s.found, s.unauthenticated = 0, nil
		rail.Progress(open/events + 1)
		for _, fd := range unauthenticated {
			s.visit(fd)
		}
	}
}

// visit breaks a connection, should it be the endpoint's.
func (s *search) visit(fd int) {
	own, ok := sockets.Own(fd)
	if !ok {
		return
	}
	accepted := own == s.own
	if !accepted && !s.dialled(fd, own) {
		return
	}
	if sockets.Listens(fd) {
		if s.shut = unix.Shutdown(fd, unix.SHUT_RD) == nil; s.shut {
			s.found++
		}
		return
	}
	switch was := sockets.Look(fd); {
	case accepted && was.Unread:
		if unix.Shutdown(fd, unix.SHUT_RDWR) == nil {
			s.unauthenticated = append(s.unauthenticated, fd)
		}
	case was.Open:
		if unix.Shutdown(fd, unix.SHUT_RDWR) == nil {
			s.found++
		}
		sockets.Empty(fd)
	}
}

// dialled says that it is a connection of the endpoint's to its peer, from the address of the rail.
func (s *search) dialled(fd int, own sockets.Name) bool {
	if s.peer == (sockets.Name{}) || own.Host() != s.own.Host() {
		return false
	}
	peer, ok := sockets.Peer(fd)
	return ok && peer == s.peer
}
