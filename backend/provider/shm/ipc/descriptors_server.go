package ipc

import (
	"slices"
	"sync"
	"time"

	"gorail/backend/gpu"
)

// DescriptorsPerMessage is the number of descriptors in one message at most. The kernel's limit is 253.
const DescriptorsPerMessage = 64

const (
	maxCallers    = 64                     // connections at a time; the next one evicts the longest silent one, unauthenticated ones first
	idleTimeout   = 5 * time.Second        // for a message of the other side
	minIdle       = 100 * time.Millisecond // a caller is not evicted earlier, so that it can send its first or next request
	minUnread     = time.Second            // the same for a caller whose request is not read yet, because this process is starved
	callerRetry   = 10 * time.Millisecond  // between tries while the process is out of descriptors, or no caller can be evicted
	callerBacklog = 128
)

// PieceSource makes descriptors of n pieces of a region's memory, starting with piece first, and the size of each piece.
// The server closes the descriptors. A refusal returns a reason other than 0. One goroutine at a time calls it.
type PieceSource func(key uint64, first, n int) (fds []int, sizes []uint64, why int)

// FileSource opens the file of a region of host memory, for a caller of our user. offset is the place of the region's first byte. The
// server closes fd. False: the region has no file now. One goroutine at a time calls it.
type FileSource func(key uint64) (fd int, offset uint64, ok bool)

// DescriptorServer sends descriptors to callers. It is safe for concurrent use.
type DescriptorServer struct {
	socks    *Sockets
	token    Token
	source   PieceSource
	prover   ProofSource // under sourceMu
	filer    FileSource  // under sourceMu
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
	conn *Conn

	lastHeard     time.Time // this and the fields below are under DescriptorServer.mu
	authenticated bool
	pending       bool // a valid request waits for its reply
}

// ServeDescriptors starts a DescriptorServer. The error is an *Error.
func ServeDescriptors(host *Host, token Token, source PieceSource) (*DescriptorServer, error) {
	return serveDescriptors(host, token, source, time.After)
}

func serveDescriptors(host *Host, token Token, source PieceSource, after func(time.Duration) <-chan time.Time) (*DescriptorServer, error) {
	socks, err := host.Listen(callerBacklog)
	if err != nil {
		return nil, err
	}
	s := &DescriptorServer{socks: socks, token: token, source: source, ended: make(chan struct{}), after: after}
	for _, sock := range socks.Listeners() {
		s.tasks.Add(1)
		go s.accept(sock)
	}
	return s, nil
}

// Place is where callers connect.
func (s *DescriptorServer) Place() *Place { return s.socks.Place() }

// NotInside says why no socket is in the host's folder; nil: one is there, or there is no folder.
func (s *DescriptorServer) NotInside() error { return s.socks.NotInside }

// Close ends the server and returns after the last call of source.
func (s *DescriptorServer) Close() {
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

func (s *DescriptorServer) accept(sock *Listener) {
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
		if OutOfResources(err) {
			s.evictOldest()
		}
		s.pause()
	}
}

func (s *DescriptorServer) pause() {
	select {
	case <-s.ended:
	case <-s.after(callerRetry):
	}
}

func (s *DescriptorServer) admit(conn *Conn) {
	c := &caller{conn: conn, lastHeard: time.Now()}
	if !s.addCaller(c) {
		conn.Close()
		return
	}
	go s.serve(c)
}

// addCaller adds a caller. It evicts another one if the server is full. If no caller can be evicted yet, it waits,
// and no other connection is accepted meanwhile. In the end a dialer finds the backlog full and tries again.
func (s *DescriptorServer) addCaller(c *caller) bool {
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

func (s *DescriptorServer) evictOldest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evict(time.Now())
}

// evict closes the longest silent caller that has no pending request, unauthenticated callers first. False: there is
// no such caller, or it was heard less than minIdle or minUnread ago. With mu.
func (s *DescriptorServer) evict(now time.Time) bool {
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
func (s *DescriptorServer) Evicted() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.evicted
}

// remove takes a caller from the list. With mu.
func (s *DescriptorServer) remove(c *caller) {
	if i := slices.Index(s.callers, c); i >= 0 {
		s.callers = slices.Delete(s.callers, i, i+1)
	}
}

// serve answers a caller until the caller is silent for idleTimeout or sends an invalid request.
func (s *DescriptorServer) serve(c *caller) {
	defer s.tasks.Done()
	for s.next(c) {
	}
	c.conn.Close()
	s.mu.Lock()
	s.remove(c)
	s.mu.Unlock()
}

func (s *DescriptorServer) next(c *caller) bool {
	var b [requestSize + 1]byte
	c.conn.Deadline(time.Now().Add(idleTimeout))
	n, err := c.conn.Recv(b[:])
	var w descriptorRequest
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
func (s *DescriptorServer) setPending(c *caller, now bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.lastHeard, c.authenticated, c.pending = time.Now(), true, now
	return !s.closed && slices.Contains(s.callers, c)
}

// answer sends the reply. It never waits: a caller that leaves replies unread until its queue is full is dropped.
func (s *DescriptorServer) answer(c *caller, w *descriptorRequest) bool {
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
	defer CloseAll(fds)
	g := descriptorReply{why: uint32(why), n: uint32(len(fds)), size: sizes}
	if len(fds) > 0 && (len(fds) != int(w.n) || len(sizes) != len(fds)) {
		return false
	}
	return c.conn.Send(g.encode(), fds...) == nil
}

// Files makes the server answer requests for files. Before that it refuses them.
func (s *DescriptorServer) Files(by FileSource) {
	s.sourceMu.Lock()
	defer s.sourceMu.Unlock()
	s.filer = by
}

// answerFile is answer for a request of a file. Files go to processes of our user alone, whatever the host's policy. With sourceMu.
func (s *DescriptorServer) answerFile(c *caller, w *descriptorRequest) bool {
	refused := descriptorReply{why: uint32(gpu.Refused)}
	if _, err := c.conn.CheckUser(SameUser); err != nil || s.filer == nil {
		return c.conn.Send(refused.encode()) == nil
	}
	fd, offset, ok := s.filer(w.key)
	if !ok { // it may have one again
		changed := descriptorReply{why: uint32(gpu.Changed)}
		return c.conn.Send(changed.encode()) == nil
	}
	defer CloseAll([]int{fd})
	g := descriptorReply{n: 1, size: []uint64{offset}}
	return c.conn.Send(g.encode(), fd) == nil
}
