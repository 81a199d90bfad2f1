package ipc

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Host is how this process meets others of its host. Its fields are set before its first use.
type Host struct {
	Folder *Folder // nil: none
	Users  Users
}

// Sockets are listening sockets of one purpose: one in the abstract namespace, and one in the host's folder.
type Sockets struct {
	place     Place
	list      []*Listener
	NotInside error // why none is in the folder; nil without a folder
}

// Listen opens Sockets. Without a socket in the folder, peers of this network namespace connect all the same. The
// error is an *Error.
func (h *Host) Listen(backlog int) (*Sockets, error) {
	l, err := Listen(backlog, h.Users)
	if err != nil {
		return nil, err
	}
	s := &Sockets{place: *l.Place(), list: []*Listener{l}}
	if h.Folder == nil {
		return s, nil
	}
	inside, err := h.Folder.Listen(backlog, h.Users)
	if err != nil {
		s.NotInside = err
		return s, nil
	}
	s.place.File = inside.fileName
	s.list = append(s.list, inside)
	return s, nil
}

// Place is where peers connect. The caller must not change it.
func (s *Sockets) Place() *Place { return &s.place }

// Listeners are the sockets, one or two.
func (s *Sockets) Listeners() []*Listener { return s.list }

// Close closes the sockets and ends Accept.
func (s *Sockets) Close() {
	for _, l := range s.list {
		l.Close()
	}
}

// Dial connects to a peer and does not wait. It takes the abstract name if the peer has our network namespace, and
// else the file in the folder; nil: there is no folder. EAGAIN: the backlog is full. The error is an *Error.
func Dial(to *Place, folder *Folder) (*Conn, error) {
	const step = "connect to the peer's socket"
	switch {
	case to.sameNet() && len(to.Abstract) > 0:
		c, err := connect(address(to.Abstract))
		if err != nil {
			return nil, &Error{step, Errno(err), ""}
		}
		return c, nil
	case folder == nil:
		return nil, &Error{step, unix.EADDRNOTAVAIL, "the peer is in another network namespace, and this process has no folder to meet it: " + meetAdvice}
	case to.File == File{}:
		return nil, &Error{step, unix.EADDRNOTAVAIL, fmt.Sprintf("the peer is in another network namespace and has no socket in a folder: %s; this process uses %s", meetAdvice, folder.path)}
	}
	return folder.dial(to.File)
}

const meetAdvice = "mount a folder of the host at /run/gorail in both containers, or name another one by option local_dir"
