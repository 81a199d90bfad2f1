package stats

// A server shows a running engine to readers of the same user, over a UNIX socket. A goroutine waits in accept;
// without a reader nothing runs.
//
// A reader connects, writes one line, and reads one JSON document up to the end of the connection:
//
//	snapshot     stats.Live
//	trace 2.5    stats.Trace, after 2.5 seconds

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
)

const (
	mostReaders = 8 // at a time; others wait
	patience    = 5 * time.Second

	lastPatience = 200 * time.Millisecond // when the engine closes
	mostTrace    = 10 * time.Minute
	mostRequest  = 64 // bytes
)

// Source is the engine that readers look at. Its functions may be called until Close has returned.
type Source struct {
	Live  func() (Live, error)
	Trace func(ctx context.Context, d time.Duration) (Trace, error)
}

// Server serves one engine. Safe for concurrent use.
type Server struct {
	closeInForks host.ForkCloser // nil: none
	freed        func()          // releases l
	path         string
	l            *net.UnixListener
	source       Source
	ctx          context.Context // ends with Close
	cancel       context.CancelFunc
	wg           sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// Listen makes the socket of an engine in a folder, which Folder has made. id is the engine's; it names the socket. Sockets
// of dead processes are removed.
func Listen(folder, id string, source Source, closeInForks host.ForkCloser) (*Server, error) {
	sweep(folder)
	path := filepath.Join(folder, prefix+id+suffix)
	l, err := bind(path)
	if err != nil {
		return nil, err
	}
	s := &Server{path: path, l: l, source: source, conns: map[net.Conn]struct{}{}, closeInForks: closeInForks}
	s.freed = host.CloseSocketInForks(closeInForks, l)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.accept)
	return s, nil
}

// Path is the path of the socket.
func (s *Server) Path() string { return s.path }

// Close removes the socket and ends all connections. Traces that are under way are answered.
func (s *Server) Close() {
	_ = os.Remove(s.path)
	s.mu.Lock()
	s.cancel()
	for c := range s.conns {
		_ = c.SetReadDeadline(time.Now())
		_ = c.SetWriteDeadline(time.Now().Add(lastPatience))
	}
	s.conns = nil
	s.mu.Unlock()
	s.freed()
	s.l.Close()
	s.wg.Wait()
}

// within sets how long a reader may take from now on, unless the server closes.
func (s *Server) within(c net.Conn, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil {
		_ = c.SetDeadline(time.Now().Add(d))
	}
}

func (s *Server) accept() {
	places := make(chan struct{}, mostReaders)
	for {
		places <- struct{}{}
		c, err := s.l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptor is left: the next try may find one
			<-places
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(time.Second):
			}
			continue
		}
		if !s.add(c) {
			c.Close()
			return
		}
		s.wg.Go(func() {
			defer func() { <-places }()
			defer s.remove(c)
			defer host.CloseSocketInForks(s.closeInForks, c)()
			s.serve(c)
			_ = c.CloseWrite() // the reader learns of the end although a child of fork has the socket, too
		})
	}
}

func (s *Server) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) remove(c net.Conn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// serve answers one request, and says nothing to a reader that has asked none. A reader that does not read loses its connection after five seconds.
func (s *Server) serve(c *net.UnixConn) {
	s.within(c, patience)
	line, err := bufio.NewReader(io.LimitReader(c, mostRequest)).ReadString('\n')
	if line == "" {
		return // it has asked nothing: the sweep of another engine
	}
	var answer any
	if err == nil {
		err = admit(c)
	}
	if err == nil {
		answer, err = s.answer(c, strings.Fields(line))
	}
	if err != nil {
		answer = Failure{err.Error()}
	}
	s.within(c, patience)
	_ = json.NewEncoder(host.Writer(c)).Encode(answer)
}

// Failure is the answer to a request that failed.
type Failure struct {
	Error string `json:"error"`
}

func (s *Server) answer(c net.Conn, words []string) (any, error) {
	switch {
	case len(words) == 1 && words[0] == "snapshot":
		return s.source.Live()
	case len(words) == 1 && words[0] == "memory":
		return memory(), nil
	case len(words) == 2 && words[0] == "trace":
		seconds, err := strconv.ParseFloat(words[1], 64)
		d := time.Duration(seconds * float64(time.Second))
		if err != nil || d <= 0 || d > mostTrace {
			return nil, fmt.Errorf("trace of %s seconds: give a number above 0 and up to %v", words[1], mostTrace.Seconds())
		}
		s.within(c, d+patience)
		ctx, cancel := context.WithCancel(s.ctx)
		defer cancel()
		go func() { // a reader that goes away ends its trace
			_, _ = c.Read(make([]byte, 1))
			cancel()
		}()
		return s.source.Trace(ctx, d)
	}
	return nil, fmt.Errorf("no request %q: snapshot, memory, or trace SECONDS", strings.Join(words, " "))
}

// admit refuses other users. Root may read everything.
func admit(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var who *unix.Ucred
	if no := raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); no != nil {
		err = no
	}
	if err == nil && who.Uid != 0 && who.Uid != uint32(os.Geteuid()) {
		err = fmt.Errorf("this engine belongs to user %d, and you are user %d", os.Geteuid(), who.Uid)
	}
	return err
}
