package descriptors

import (
	"context"

	"gorail/backend/gpu"
	"gorail/backend/provider/shm/ipc"
)

// Filer opens the file of a region of host memory, for a caller of our user. offset is the place of the region's first byte. The
// server closes fd. False: the region has no file. One goroutine at a time calls it.
type Filer func(key uint64) (fd int, offset uint64, ok bool)

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
	if !ok {
		return c.conn.Send(refused.encode()) == nil
	}
	defer ipc.CloseAll([]int{fd})
	g := reply{n: 1, size: []uint64{offset}}
	return c.conn.Send(g.encode(), fd) == nil
}

// FetchFile requests the file of a region of the owner's, and the place of the region's first byte in it. The caller closes fd. It
// waits as Fetch does. The error is a gpu.Why.
func FetchFile(ctx context.Context, of Owner, key uint64) (fd int, offset uint64, err error) {
	f := fetch{ctx: ctx, of: of}
	f.renewDeadline()
	defer func() { f.cancel() }()
	if err := f.connect(); err != nil {
		return -1, 0, err
	}
	defer func() { f.hangUp() }()
	fds, offsets, err := f.ask(&request{token: of.Token, key: key, what: askFile, n: 1})
	if err != nil {
		return -1, 0, err
	}
	return int(fds[0]), offsets[0], nil
}
