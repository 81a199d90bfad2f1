package shm

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
	"gorail/backend/provider/shm/ipc"
)

// openFolder opens the folder of option local_dir and removes sockets that dead processes of our user have left
// there. Without a folder, peers of this network namespace are reached all the same.
func (r *rail) openFolder(o Options) {
	r.host = &ipc.Host{}
	if o.AnyUser {
		r.host.Users = ipc.AnyUser
	}
	path := o.LocalDir
	switch path {
	case "", NoDir:
		return
	case AutoDir:
		path = DefaultDir
	}
	var err error
	if r.host.Folder, err = ipc.OpenFolder(path); err != nil {
		r.host.Folder, r.noFolder = nil, err
		return
	}
	r.host.Folder.Sweep()
}

// noteFolder notes why peers of other network namespaces cannot connect.
func (r *rail) noteFolder(o Options) {
	err := r.noFolder
	if inside := r.listener.NotInside(); inside != nil {
		err = inside
	}
	if err == nil {
		return
	}
	line := fmt.Sprintf("peers in other network namespaces of this host do not reach us: %v", err)
	if o.LocalDir == AutoDir && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES)) { // nobody meant that folder for us
		r.reports = append(r.reports, line)
		return
	}
	r.notes = append(r.notes, line)
}

func (r *rail) closeFolder() {
	if r.host != nil && r.host.Folder != nil {
		r.host.Folder.Close()
	}
}

// leave looks after the sockets of the endpoint's peer, whose process may have died. The peer's own rail removes them
// when it closes.
func (r *rail) leave(e *endpoint) {
	if r.host.Folder == nil {
		return
	}
	files := []ipc.File{e.peer.File}
	if server, ok := ipc.Decode(e.core.Server()); ok {
		files = append(files, server.File)
	}
	for _, f := range files {
		if f != (ipc.File{}) && f != r.listener.Place().File {
			r.stale.watch(r.host.Folder, f, e.core.Pidfd())
		}
	}
}

const (
	staleMost = 64              // sockets that are watched at a time; a sweep finds the others
	staleTime = 5 * time.Second // from the end of an endpoint to the end of its peer's process, at most
	staleLook = 100 * time.Millisecond
)

// stale removes sockets of peers that die without a close. Its zero value is ready.
type stale struct {
	mu    sync.Mutex
	files map[ipc.File]bool
	ended chan struct{}
	over  bool
	tasks sync.WaitGroup
}

// watch removes the socket when the process of the pidfd ends soon, or has ended. -1: no pidfd. The caller keeps
// pidfd.
func (s *stale) watch(in *ipc.Folder, file ipc.File, pidfd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.files[file] || len(s.files) == staleMost {
		return
	}
	if pidfd >= 0 {
		var err error
		if pidfd, err = unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return
		}
	}
	if s.files == nil {
		s.files, s.ended = map[ipc.File]bool{}, make(chan struct{})
	}
	s.files[file] = true //limit:shm_stale
	s.tasks.Add(1)
	go s.wait(in, file, pidfd)
}

func (s *stale) wait(in *ipc.Folder, file ipc.File, pidfd int) {
	defer s.tasks.Done()
	defer closeFDs(pidfd)
	last := false
	for until := time.Now().Add(staleTime); ; {
		dead := pidfd < 0 || host.ProcessEnded(pidfd)
		if dead && in.RemoveDead(file) || last || time.Now().After(until) {
			break
		}
		select {
		case <-s.ended:
			last = true
		case <-time.After(staleLook):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, file)
}

// close ends the watches. Each looks once more.
func (s *stale) close() {
	s.mu.Lock()
	if !s.over && s.ended != nil {
		close(s.ended)
	}
	s.over = true
	s.mu.Unlock()
	s.tasks.Wait()
}

// TryFolder makes a socket in the folder of Options.LocalDir, as a rail does, and removes it. path is the folder; "": the
// option wants none. The error is an *ipc.Error that says what to do.
func TryFolder(o Options) (path string, err error) {
	switch path = o.LocalDir; path {
	case "", NoDir:
		return "", nil
	case AutoDir:
		path = DefaultDir
	}
	f, err := ipc.OpenFolder(path)
	if err != nil {
		return path, err
	}
	defer f.Close()
	users := ipc.SameUser
	if o.AnyUser {
		users = ipc.AnyUser
	}
	l, err := f.Listen(1, users)
	if err != nil {
		return path, err
	}
	l.Close()
	return path, nil
}
