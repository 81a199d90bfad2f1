// Package descriptors passes file descriptors between processes of one host: of VMM memory (of GPUs), and of host memory that is a
// file. The owner of the memory makes them when a peer maps the memory, and sends them over sockets of its rail. Peers read the sockets' names
// and a token from the table of shares. Any process of the host may connect: processes of users that may not be peers
// are refused, and no caller can hold up the others.
package descriptors

import (
	"slices"
	"sync"
	"time"

	"gorail/backend/gpu"
	"gorail/backend/provider/shm/ipc"
)

// PerMessage is the number of descriptors in one message at most. The kernel's limit is 253.
const PerMessage = 64

const (
	maxCallers  = 64                     // connections at a time; the next one evicts the longest silent one, unauthenticated ones first
	idleTimeout = 5 * time.Second        // for a message of the other side
	minIdle     = 100 * time.Millisecond // a caller is not evicted earlier, so that it can send its first or next request
	minUnread   = time.Second            // the same for a caller whose request is not read yet, because this process is starved
	retryDelay  = 10 * time.Millisecond  // between tries while the process is out of descriptors, or no caller can be evicted
	backlog     = 128
)

// Token is secret. A caller that shows the token has read the table of shares.
type Token = ipc.Token

// Source makes descriptors of n pieces of a region's memory, starting with piece first, and the size of each piece.
// The server closes the descriptors. A refusal returns a reason other than 0. One goroutine at a time calls it.
type Source func(key uint64, first, n int) (fds []int, sizes []uint64, why int)

// Filer opens the file of a region of host memory, for a caller of our user. offset is the place of the region's first byte. The
// server closes fd. False: the region has no file now. One goroutine at a time calls it.
type Filer func(key uint64) (fd int, offset uint64, ok bool)

// Server sends descriptors to callers. It is safe for concurrent use.
type Server struct {
	socks    *ipc.Sockets
	token    Token
	source   Source
	prover   Prover // under sourceMu
	filer    Filer  // under sourceMu
	tasks    sync.WaitGroup
	ended    chan struct{} // closed by Close
	after    func(time.Duration) <-chan time.Time
	sourceMu sync.Mutex // serializes calls of source; taken before mu

	mu      sync.Mutex
	closed  bool
	callers []*caller
	evicted uint64
}

type caller struct {
	conn *ipc.Conn

	lastHeard     time.Time // this and the fields below are under Server.mu
	authenticated bool
	pending       bool // a valid request waits for its reply
}

// Serve starts a Server. The error is an *ipc.Error.
func Serve(host *ipc.Host, token Token, source Source) (*Server, error) {
	return serve(host, token, source, time.After)
}

func serve(host *ipc.Host, token Token, source Source, after func(time.Duration) <-chan time.Time) (*Server, error) {
	socks, err := host.Listen(backlog)
	if err != nil {
		return nil, err
	}
	s := &Server{socks: socks, token: token, source: source, ended: make(chan struct{}), after: after}
	for _, sock := range socks.Listeners() {
		s.tasks.Add(1)
		go s.accept(sock)
	}
	return s, nil
}

// Place is where callers connect.
func (s *Server) Place() *ipc.Place { return s.socks.Place() }

// NotInside says why no socket is in the host's folder; nil: one is there, or there is no folder.
func (s *Server) NotInside() error { return s.socks.NotInside }

// Close ends the Server and returns after the last call of source.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for _, c := range s.callers {
		c.conn.Close()
	}
	s.mu.Unlock()
	close(s.ended)
	s.socks.Close()
	s.tasks.Wait()
}

func (s *Server) accept(sock *ipc.Listener) {
	defer s.tasks.Done()
	for {
		conn, err := sock.Accept()
		select {
		case <-s.ended:
			if err == nil {
				conn.Close()
			}
			return
		default:
		}
		if err == nil {
			s.admit(conn)
			continue
		}
		if ipc.OutOfResources(err) {
			s.evictOldest()
		}
		s.pause()
	}
}

func (s *Server) pause() {
	select {
	case <-s.ended:
	case <-s.after(retryDelay):
	}
}

func (s *Server) admit(conn *ipc.Conn) {
	c := &caller{conn: conn, lastHeard: time.Now()}
	if !s.addCaller(c) {
		conn.Close()
		return
	}
	go s.serve(c)
}

// addCaller adds a caller. It evicts another one if the server is full. If no caller can be evicted yet, it waits,
// and no other connection is accepted meanwhile. In the end a dialer finds the backlog full and tries again.
func (s *Server) addCaller(c *caller) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed && len(s.callers) == maxCallers && !s.evict(time.Now()) {
		s.mu.Unlock()
		s.pause()
		s.mu.Lock()
	}
	if s.closed {
		return false
	}
	c.lastHeard = time.Now()         // addCaller may have waited above
	s.callers = append(s.callers, c) //limit:shm_callers
	s.tasks.Add(1)
	return true
}

func (s *Server) evictOldest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evict(time.Now())
}

// evict closes the longest silent caller that has no pending request, unauthenticated callers first. False: there is
// no such caller, or it was heard less than minIdle or minUnread ago. With mu.
func (s *Server) evict(now time.Time) bool {
	var oldest *caller
	for _, c := range s.callers {
		if !c.pending && (oldest == nil || c.authenticated == oldest.authenticated && c.lastHeard.Before(oldest.lastHeard) || !c.authenticated && oldest.authenticated) {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	silent := now.Sub(oldest.lastHeard)
	if silent < minIdle || silent < minUnread && oldest.conn.Unread() {
		return false
	}
	oldest.conn.Close()
	s.remove(oldest)
	s.evicted++
	return true
}

// Evicted is the number of callers that made room for others.
func (s *Server) Evicted() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.evicted
}

// remove takes a caller from the list. With mu.
func (s *Server) remove(c *caller) {
	if i := slices.Index(s.callers, c); i >= 0 {
		s.callers = slices.Delete(s.callers, i, i+1)
	}
}

// serve answers a caller until the caller is silent for idleTimeout or sends an invalid request.
func (s *Server) serve(c *caller) {
	defer s.tasks.Done()
	for s.next(c) {
	}
	c.conn.Close()
	s.mu.Lock()
	s.remove(c)
	s.mu.Unlock()
}

func (s *Server) next(c *caller) bool {
	var b [requestSize + 1]byte
	c.conn.Deadline(time.Now().Add(idleTimeout))
	n, err := c.conn.Recv(b[:])
	var w request
	if err != nil || n != requestSize {
		return false
	}
	w.decode(b[:])
	if !w.valid() || !w.token.Equal(s.token) || !s.setPending(c, true) {
		return false
	}
	return s.answer(c, &w) && s.setPending(c, false)
}

// setPending notes the start or end of a request. False: the caller was evicted, or the server is closed. With its
// call the caller counts as authenticated.
func (s *Server) setPending(c *caller, now bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.lastHeard, c.authenticated, c.pending = time.Now(), true, now
	return !s.closed && slices.Contains(s.callers, c)
}

// answer sends the reply. It never waits: a caller that leaves replies unread until its queue is full is dropped.
func (s *Server) answer(c *caller, w *request) bool {
	s.sourceMu.Lock()
	defer s.sourceMu.Unlock()
	select {
	case <-s.ended:
		return false
	default:
	}
	switch w.what {
	case askProof:
		return s.answerProof(c, w)
	case askFile:
		return s.answerFile(c, w)
	}
	fds, sizes, why := s.source(w.key, int(w.first), int(w.n))
	defer ipc.CloseAll(fds)
	g := reply{why: uint32(why), n: uint32(len(fds)), size: sizes}
	if len(fds) > 0 && (len(fds) != int(w.n) || len(sizes) != len(fds)) {
		return false
	}
	return c.conn.Send(g.encode(), fds...) == nil
}

// Files makes the Server answer requests for files. Before that it refuses them.
func (s *Server) Files(by Filer) {
	s.sourceMu.Lock()
	defer s.sourceMu.Unlock()
	s.filer = by
}

// answerFile is answer for a request of a file. Files go to processes of our user alone, whatever the host's policy. With sourceMu.
func (s *Server) answerFile(c *caller, w *request) bool {
	refused := reply{why: uint32(gpu.Refused)}
	if _, err := c.conn.CheckUser(ipc.SameUser); err != nil || s.filer == nil {
		return c.conn.Send(refused.encode()) == nil
	}
	fd, offset, ok := s.filer(w.key)
	if !ok { // it may have one again
		changed := reply{why: uint32(gpu.Changed)}
		return c.conn.Send(changed.encode()) == nil
	}
	defer ipc.CloseAll([]int{fd})
	g := reply{n: 1, size: []uint64{offset}}
	return c.conn.Send(g.encode(), fd) == nil
}
