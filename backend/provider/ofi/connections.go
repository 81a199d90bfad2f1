package ofi

import (
	"sync"

	"golang.org/x/sys/unix"

	"gorail/backend/provider/ofi/libfabric"
	"gorail/backend/provider/ofi/sockets"
)

// Closing an endpoint of the tcp family needs a workaround for two bugs of libfabric:
//
//  - An accepted connection that has not sent its connection request keeps a pointer to the listening endpoint. The
//    next poll follows this pointer into freed memory (all releases 1.17 .. 2.6; a comment in its source says so).
//  - net 1.17 frees and reports a READ twice if its response arrives while the endpoint closes. Afterwards operations
//    share records. A connection that breaks by itself is handled correctly.
//
// So the endpoint's connections are broken before the endpoint closes. The API does not show them. They are found among
// the process's sockets, by our port or by the peer's address. They are shut down and emptied, and then libfabric polls
// until it has noticed.
//
// A scan of all descriptors takes milliseconds if there are thousands. The scan therefore runs without the rail's lock,
// and one scan serves all endpoints that are closing.

// search is the search for the sockets of one endpoint.
type search struct {
	own, peer       sockets.Name // peer: the zero name if there is none
	listener        int          // -1: not found
	fds             []int        // descriptors that may be the endpoint's
	later           bool         // more connections may be accepted than were found
	scanned         bool         // the scan is over
	found           int          // broken in this pass, not yet noticed by libfabric
	shut            bool         // the listener is among them
	unauthenticated []int        // connections that libfabric must drop before the endpoint closes
}

// scanner shares one scan among all concurrent callers.
type scanner struct {
	files sockets.Files // used by the goroutine that scans

	mu       sync.Mutex // locked before the rail's lock
	over     sync.Cond
	wanted   []*search
	scanning bool
}

// find scans for an endpoint's sockets, without the rail's lock.
func (l *scanner) find(rail *libfabric.Rail, own *search) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanted = append(l.wanted, own)
	for !own.scanned {
		if l.scanning {
			l.over.Wait()
			continue
		}
		batch := l.wanted
		l.wanted, l.scanning = nil, true
		l.mu.Unlock()
		scan(l.files, rail, batch)
		l.mu.Lock()
		l.scanning = false
		for _, s := range batch {
			s.scanned = true
		}
		l.over.Broadcast()
	}
}

// scan finds the sockets of all searches. A connection is final once three conditions hold: the listener drops new
// connections, its backlog is empty, and every poll that may have accepted one is over.
func scan(files sockets.Files, rail *libfabric.Rail, batch []*search) {
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
		s.later = failed != nil || !dropIncoming(s.listener) || sockets.Backlog(s.listener)
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

// dropIncoming drops everything that arrives at the socket. A shutdown would keep libfabric busy with the socket until the
// endpoint closes.
func dropIncoming(fd int) bool { return fd >= 0 && sockets.Filter(fd, sockets.Admitting()) == nil }

// breakAll breaks the connections that were found. Completions stay in the queue. The caller holds the rail, so
// libfabric accepts nothing meanwhile: it accepts only when polled. open is the number of the rail's endpoints.
func (s *search) breakAll(rail *libfabric.Rail, files sockets.Files, open int) {
	const rounds, events = 8, 64 // one round is usually enough; one poll handles at least this many events
	if s.later {
		_ = files.Each(func(fd int) bool { s.visit(fd); return true })
	} else {
		for _, fd := range s.fds {
			s.visit(fd)
		}
	}
	if s.found == 1 && s.shut {
		s.found = 0 // only the listener: libfabric closes it and need not notice
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

// visit breaks the connection if it belongs to the endpoint.
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
	switch was := sockets.StateOf(fd); {
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

// dialled reports whether fd is the endpoint's connection to its peer, from the address of the rail.
func (s *search) dialled(fd int, own sockets.Name) bool {
	if s.peer == (sockets.Name{}) || own.Host() != s.own.Host() {
		return false
	}
	peer, ok := sockets.Peer(fd)
	return ok && peer == s.peer
}
