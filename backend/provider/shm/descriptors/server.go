// Package descriptors carries descriptors of VMM memory (of GPUs) between processes of one host: its owner makes them when a peer maps it, and
// sends them over a socket of the rail's own, whose name and token only those know who have the table of shares. Anybody may connect,
// though: other users' processes are refused, and nobody is waited for.
package descriptors

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"gorail/backend/provider/shm/ipc"
)

// PerMessage is how many descriptors one message has at most; the kernel takes 253.
const PerMessage = 64

const (
	places   = 64                     // callers at a time; one more, and the one that was silent longest goes, of those first that have shown no token
	patience = 5 * time.Second        // with one that says nothing
	askIn    = 100 * time.Millisecond // is what a caller has, and who was answered, to ask
	shortNap = 10 * time.Millisecond  // while there are no descriptors for callers, or no places
	backlog  = 128
)

// Token shows that a caller has read the table of shares.
type Token [ipc.TokenSize]byte

// want asks for some pieces of a region's memory.
type want struct {
	token    Token
	key      uint64
	first, n uint32
}

const wantSize = ipc.TokenSize + 8 + 4 + 4

func (w *want) encode() []byte {
	b := append(make([]byte, 0, wantSize), w.token[:]...)
	b = binary.NativeEndian.AppendUint64(b, w.key)
	b = binary.NativeEndian.AppendUint32(b, w.first)
	return binary.NativeEndian.AppendUint32(b, w.n)
}

func (w *want) decode(b []byte) {
	w.token = Token(b)
	w.key = binary.NativeEndian.Uint64(b[16:])
	w.first, w.n = binary.NativeEndian.Uint32(b[24:]), binary.NativeEndian.Uint32(b[28:])
}

// given is the answer: why not (a gpu.Why), or how many, and the size of each.
type given struct {
	why, n uint32
	size   []uint64
}

const givenSize = 4 + 4 + 8*PerMessage

func (g *given) encode() []byte {
	b := binary.NativeEndian.AppendUint32(make([]byte, 0, givenSize), g.why)
	b = binary.NativeEndian.AppendUint32(b, g.n)
	for _, size := range g.size {
		b = binary.NativeEndian.AppendUint64(b, size)
	}
	return append(b, make([]byte, givenSize-len(b))...)
}

// Source makes n descriptors of a region's memory, from the first on, for the server to close, with the size of each; or says why not, which is not 0. It
// is called by one goroutine at a time.
type Source func(key uint64, first, n int) (fds []int, sizes []uint64, why int)

// Server gives descriptors. Safe for concurrent use.
type Server struct {
	sock   *ipc.Listener
	token  Token
	source Source
	tasks  sync.WaitGroup
	ended  chan struct{} // closed by Close
	after  func(time.Duration) <-chan time.Time
	giving sync.Mutex // calls of source; above mu

	mu      sync.Mutex
	closed  bool
	callers []*caller
}

type caller struct {
	conn *ipc.Conn

	heard  time.Time // the rest under Server.mu
	proved bool
	asked  bool // it has asked for what it may, and has no answer yet
}

// Serve begins to. The error is an *ipc.Error.
func Serve(token Token, source Source) (*Server, error) { return serve(token, source, time.After) }

func serve(token Token, source Source, after func(time.Duration) <-chan time.Time) (*Server, error) {
	sock, err := ipc.Listen(backlog)
	if err != nil {
		return nil, err
	}
	s := &Server{sock: sock, token: token, source: source, ended: make(chan struct{}), after: after}
	s.tasks.Add(1)
	go s.accept()
	return s, nil
}

// Name is the socket's.
func (s *Server) Name() []byte { return s.sock.Name() }

// Close returns when source is called no more.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for _, c := range s.callers {
		c.conn.Close()
	}
	s.mu.Unlock()
	close(s.ended)
	s.sock.Close()
	s.tasks.Wait()
}

func (s *Server) accept() {
	defer s.tasks.Done()
	for {
		conn, err := s.sock.Accept()
		select {
		case <-s.ended:
			if err == nil {
				conn.Close()
			}
			return
		default:
		}
		if err == nil {
			s.take(conn)
			continue
		}
		if ipc.OutOfResources(err) {
			s.dropOldest()
		}
		s.nap()
	}
}

func (s *Server) nap() {
	select {
	case <-s.ended:
	case <-s.after(shortNap):
	}
}

func (s *Server) take(conn *ipc.Conn) {
	c := &caller{conn: conn, heard: time.Now()}
	if _, err := conn.CheckUser(); err != nil || !s.place(c) {
		conn.Close()
		return
	}
	go s.serve(c)
}

// place gives a caller a place, somebody else's if all are taken. While all wait for their answers, or have come just now, nobody comes in: who
// connects finds the backlog full in the end, and tries again.
func (s *Server) place(c *caller) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed && len(s.callers) == places && !s.drop() {
		s.mu.Unlock()
		s.nap()
		s.mu.Lock()
	}
	if s.closed {
		return false
	}
	c.heard = time.Now() // it may have waited above
	s.callers = append(s.callers, c)
	s.tasks.Add(1)
	return true
}

func (s *Server) dropOldest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

// drop lets one go that waits for no answer, and has had time to ask: of those first that have shown no token. False: there is none. With mu.
func (s *Server) drop() bool {
	var oldest *caller
	for _, c := range s.callers {
		if !c.asked && (oldest == nil || c.proved == oldest.proved && c.heard.Before(oldest.heard) || !c.proved && oldest.proved) {
			oldest = c
		}
	}
	if oldest == nil || time.Since(oldest.heard) < askIn {
		return false
	}
	oldest.conn.Close()
	s.forget(oldest)
	return true
}

// forget frees a caller's place. With mu.
func (s *Server) forget(c *caller) {
	if i := slices.Index(s.callers, c); i >= 0 {
		s.callers = slices.Delete(s.callers, i, i+1)
	}
}

// serve answers a caller until it is silent too long, or asks for what it may not.
func (s *Server) serve(c *caller) {
	defer s.tasks.Done()
	for s.next(c) {
	}
	c.conn.Close()
	s.mu.Lock()
	s.forget(c)
	s.mu.Unlock()
}

func (s *Server) next(c *caller) bool {
	var b [wantSize + 1]byte
	c.conn.Deadline(time.Now().Add(patience))
	n, err := c.conn.Recv(b[:])
	var w want
	if err != nil || n != wantSize {
		return false
	}
	w.decode(b[:])
	if w.n == 0 || w.n > PerMessage || w.token != s.token || !s.asks(c, true) {
		return false
	}
	return s.answer(c, &w) && s.asks(c, false)
}

// asks notes that a caller waits for an answer, or has it. False: it was let go.
func (s *Server) asks(c *caller, now bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.heard, c.proved, c.asked = time.Now(), true, now
	return !s.closed && slices.Contains(s.callers, c)
}

// answer sends what was asked for. A caller that has not taken its last answer gets no other.
func (s *Server) answer(c *caller, w *want) bool {
	s.giving.Lock()
	defer s.giving.Unlock()
	select {
	case <-s.ended:
		return false
	default:
	}
	fds, sizes, why := s.source(w.key, int(w.first), int(w.n))
	defer ipc.CloseAll(fds)
	g := given{why: uint32(why), n: uint32(len(fds)), size: sizes}
	if len(fds) > 0 && (len(fds) != int(w.n) || len(sizes) != len(fds)) {
		return false
	}
	return c.conn.Send(g.encode(), fds...) == nil
}
