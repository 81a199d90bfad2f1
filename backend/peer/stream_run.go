package peer

import (
	"context"
	"errors"
	"fmt"

	"gorail/backend/wire"
)

// Run reads until the stream ends. begin runs first, while the writer already works. Afterwards the caller calls the
// handler's last method with the result of Ended, and then wait.
func (s *stream) Run(begin func() error) (wait func()) {
	s.writing.begin()
	err := begin()
	for first := true; err == nil; first = false {
		var c *streamConn
		if c, err = s.awaitConn(); err != nil {
			break
		}
		if !first && s.resumed != nil {
			err = s.env.Guard(s.peer, "another connection", func() error { s.resumed(localAddr(c.Conn), remoteAddr(c.Conn)); return nil })
		}
		if err == nil {
			err = s.read(c)
		}
	}
	var last *wire.Bye
	switch {
	case errors.Is(err, ErrHandler), errors.Is(err, ErrProtocol), errors.Is(err, ErrSilent):
		last = s.Bye(err.Error())
	}
	s.End(Lost, err, last)
	close(s.readDone)
	return func() { <-s.writing.over }
}

// WatchProcess ends the stream as soon as the peer's process ends. The process must be visible. A child of that
// process may keep its sockets open, so the connection may stay open. WatchProcess returns at once. The watch ends
// with the stream.
func (s *stream) WatchProcess(p wire.Process) {
	stop, alive, err := watchProcess(p, func() { s.env.Spawn(func() { s.processEnded(p) }) })
	if err != nil {
		s.env.Log.Debug("cannot watch the process of the peer; the connection alone shows its end", "peer", s.peer, "pid", p.PID, "err", err)
		return
	}
	if !alive {
		s.processEnded(p)
		return
	}
	s.mu.Lock()
	s.signs.running = true
	if s.live != nil {
		s.live.Watched()
	}
	s.mu.Unlock()
	context.AfterFunc(s.ctx, stop)
}

func (s *stream) processEnded(p wire.Process) {
	s.mu.Lock()
	s.signs.running = false
	s.mu.Unlock()
	s.End(Lost, dead(fmt.Errorf("%w: %s: its process (pid %d) has ended", ErrDropped, s.peer, p.PID)), nil)
}
