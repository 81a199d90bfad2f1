package ipc

import (
	"encoding/hex"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	sweepMost  = 256         // files that a sweep looks at
	sweepNames = 16384       // names that it reads to choose these files
	sweepAge   = time.Minute // of a socket that never listened, if a sweep may remove it
)

// Sweep removes sockets of our user, of this boot of the host, whose processes have ended. A process that lives accepts connections, stopped or
// not, from the moment that its socket has its name.
func (f *Folder) Sweep() { f.sweep(time.Now()) }

func (f *Folder) sweep(now time.Time) {
	dir, err := os.Open(f.at("")) // O_PATH cannot be read
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(sweepNames)
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	looked := 0
	for _, name := range names {
		if !isSocketName(name) {
			continue
		}
		if looked++; looked > sweepMost {
			break
		}
		var st unix.Stat_t
		if unix.Fstatat(f.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK ||
			st.Uid != uint32(unix.Geteuid()) {
			continue
		}
		if strings.HasSuffix(name, fresh) && now.Sub(time.Unix(st.Ctim.Unix())) < sweepAge { // its process may be about to listen
			continue
		}
		f.removeDead(name)
	}
}

// isSocketName reports that a file may be one of this host's engines, since its boot.
func isSocketName(name string) bool {
	digits, ok := strings.CutSuffix(strings.TrimSuffix(name, fresh), suffix)
	digits, here := strings.CutPrefix(digits, bootMark())
	b, err := hex.DecodeString(digits)
	return ok && here && err == nil && len(b) == len(File{}) && digits == strings.ToLower(digits)
}

// RemoveDead removes a peer's socket if its process has ended. gone is false if the socket is there and takes
// connections.
func (f *Folder) RemoveDead(file File) (gone bool) { return f.removeDead(file.Name()) }

func (f *Folder) removeDead(name string) (gone bool) {
	if f.bound(name) {
		return false
	}
	c, err := connect(&unix.SockaddrUnix{Name: f.at(name)})
	if err == nil {
		c.Drop()
		return false
	}
	switch Errno(err) {
	case unix.ECONNREFUSED: // nothing listens, and no name is used twice
		_ = unix.Unlinkat(f.fd(), name, 0)
		return true
	case unix.ENOENT:
		return true
	}
	return false
}

// bound reports that a living process has the socket, and does not wake that process. A socket of another type is looked up and refused with
// EPROTOTYPE. A connection wakes it: each new engine woke 256 others.
func (f *Folder) bound(name string) bool {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(sock)
	return unix.Connect(sock, &unix.SockaddrUnix{Name: f.at(name)}) == unix.EPROTOTYPE
}
