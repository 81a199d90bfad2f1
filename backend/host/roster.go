package host

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a roster, and names in its folder. A file of an engine is named after the host's boot, with random digits.
const (
	rosterMost  = 1024                  // files of engines that a look reads
	rosterNames = 16384                 // names in the folder that it reads to find them
	rosterBytes = 16 << 10              // of a file
	rosterWait  = time.Second           // for the lock of the folder
	rosterAgain = time.Minute           // after such a wait: the next one that is as long, if the lock was not free since
	rosterBrief = 10 * time.Millisecond // each wait between: to enter beside seven others takes 0.3 ms (BenchmarkRoster)
	rosterFresh = time.Minute           // age of a file without its lock and its name, if a look may remove it

	lockName, freshName = "gorail-rails.lock", ".new"
)

// ErrRosterBusy means that the entry was made without the lock of the folder.
var ErrRosterBusy = errors.New("another process holds the lock of the roster: engines that start now may choose the same devices; continue or end the process that is stopped " +
	"(lslocks names the holder of " + lockName + "), or set option rail_share=off")

// Roster shows the engines of a host to each other: a folder with a file for each engine, whose lock is held while the engine lives. The lock
// is an open file description lock (F_OFD_SETLK). A POSIX lock would end when another engine of the process closes the file after a look. A flock
// could be taken by every reader, who would keep a dead engine. Children of fork share the lock, and close it (ForkCloser). Process ids mean
// nothing here: other pid namespaces do not show them. It is safe for concurrent use until Close.
type Roster struct {
	Path string // of the folder; constant

	dir    int    // -1: closed
	notify int    // inotify of the folder; -1: none
	shared bool   // other users may make files in the folder
	prefix string // of the names of engines of this boot
	closer ForkCloser

	mu      sync.Mutex
	file    int    // of our entry; -1: none
	name    string // of our entry
	release func() // of file
	again   bool   // a change was seen. A dying process's lock ends a moment after its file has closed
}

// OpenRoster opens the roster in a folder that no other user may own or replace (TrustedFolder). mode is that of the folder if it is made; 0: it
// is not.
func OpenRoster(path string, mode uint32, closer ForkCloser) (*Roster, error) {
	r := &Roster{Path: filepath.Clean(path), notify: -1, file: -1, closer: closer}
	w, err := TrustedFolder(filepath.Dir(r.Path)) // not made
	if err == nil {
		w.Close()
		w, err = MakeFolder(r.Path, mode)
	}
	if err != nil {
		return nil, r.advise("open", err)
	}
	defer w.Close()
	if r.dir, err = unix.Openat(w.Fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, r.advise("open", err)
	}
	var st unix.Stat_t
	r.shared = unix.Fstat(r.dir, &st) == nil && st.Mode&0o022 != 0
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	r.prefix = fmt.Sprintf("gorail-rails-%.8s-", append(boot, "unknown-"...))
	const changes = unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE // a process that dies closes its file
	r.notify, _ = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if _, err := unix.InotifyAddWatch(r.notify, fmt.Sprint("/proc/self/fd/", r.dir), changes); err != nil && r.notify >= 0 {
		_ = unix.Close(r.notify)
		r.notify = -1
	}
	return r, nil
}

// Enter shows the entries of the other engines to choose, and makes or replaces our own by what that returns. No other engine enters meanwhile.
// After ErrRosterBusy our entry is there all the same. After another error it may not be, although choose may have run.
func (r *Roster) Enter(choose func(others []Entry) Entry) error {
	unlock, busy := r.lock()
	if busy != nil && busy != ErrRosterBusy {
		return busy
	}
	defer unlock()
	others, err := r.Others()
	if err == nil {
		err = r.Update(choose(others))
	}
	return cmp.Or(err, busy)
}

// Changed reports that entries may have changed since the last look. Without inotify that is always so.
func (r *Roster) Changed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.again
	r.again = r.events()
	return before || r.again || r.notify < 0
}

// Close takes our entry away.
func (r *Roster) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leave()
	_, _ = unix.Close(r.notify), unix.Close(r.dir)
	r.notify, r.dir = -1, -1
}

// heldUp is when a wait for the lock of a folder was in vain, by Path. A stopped process that holds it then costs each engine of this process little.
var heldUp sync.Map

// patience is how long to wait for the lock.
func (r *Roster) patience() time.Duration {
	if at, was := heldUp.Load(r.Path); was && time.Since(at.(time.Time)) < rosterAgain {
		return rosterBrief
	}
	return rosterWait
}

// lock takes the lock of the folder. If its file is removed, the next one is locked.
func (r *Roster) lock() (unlock func(), err error) {
	wait := r.patience()
	for nap, end := 50*time.Microsecond, time.Now().Add(wait); ; nap = min(2*nap, 5*time.Millisecond) {
		fd, err := r.open(lockName, unix.O_RDWR) // with O_CREAT the kernel refuses other users' files in a folder with the sticky bit
		if err == unix.ENOENT {
			fd, err = r.open(lockName, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
		}
		if err == nil {
			release := r.closer(fd)
			unlock = func() {
				_ = setLock(fd, unix.F_UNLCK) // also for children that were made meanwhile
				release()
				_ = unix.Close(fd)
			}
			if err = setLock(fd, unix.F_WRLCK); err == nil && linked(fd) {
				heldUp.Delete(r.Path)
				return unlock, nil
			}
			unlock()
		}
		if err != nil && err != unix.EAGAIN && err != unix.EACCES && err != unix.EEXIST {
			return nil, r.advise("lock", err)
		}
		if time.Now().After(end) {
			if wait == rosterWait {
				heldUp.Store(r.Path, time.Now())
			}
			return func() {}, ErrRosterBusy
		}
		time.Sleep(nap)
	}
}

// open opens a file, and follows no link. All users of a shared folder may read what it makes, and take the lock. Implements openat.
func (r *Roster) open(name string, how int) (int, error) {
	fd, err := unix.Openat(r.dir, name, how|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err == nil && how&unix.O_CREAT != 0 && r.shared {
		mode := uint32(0o644)
		if name == lockName {
			mode = 0o666 // a lock wants a file that is open for writing
		}
		err = unix.Fchmod(fd, mode)
	}
	return fd, err
}

func setLock(fd int, kind int16) error {
	return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind})
}

// linked reports that a file has a name.
func linked(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Nlink > 0
}

// Update makes or replaces our entry, and looks at no other. A reader sees by the checksum that it has met a write.
func (r *Roster) Update(e Entry) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, err := e.encode()
	fresh := !linked(r.file) // none yet, or somebody has cleaned up
	if fresh && err == nil {
		r.leave()
		err = r.make()
	}
	if n := 0; err == nil {
		if n, err = unix.Pwrite(r.file, b, 0); err == nil && n < len(b) {
			err = unix.ENOSPC
		}
	}
	if final := strings.TrimSuffix(r.name, freshName); fresh && err == nil {
		if err = unix.Renameat(r.dir, r.name, r.dir, final); err == nil {
			r.name = final
		}
	}
	if err != nil {
		r.leave()
		return r.advise("write", err)
	}
	return nil
}

// make makes our file and takes its lock. Readers leave a fresh file alone, which may have no lock yet.
func (r *Roster) make() (err error) {
	var digits [8]byte
	_, _ = rand.Read(digits[:])
	r.name = fmt.Sprintf("%s%x%s", r.prefix, digits, freshName)
	if r.file, err = r.open(r.name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL); err != nil {
		return err
	}
	r.release = r.closer(r.file)
	return setLock(r.file, unix.F_WRLCK)
}

// leave takes our entry away, if there is one. Under mu.
func (r *Roster) leave() {
	if r.file >= 0 {
		_ = unix.Unlinkat(r.dir, r.name, 0)
		r.release()
		_ = unix.Close(r.file)
		r.file = -1
	}
}

// Others are the entries of the other engines that live. Files of dead engines are removed.
func (r *Roster) Others() (list []Entry, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.again = r.events() || r.again // before the look: what comes after it is seen the next time
	fd, err := r.open(".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, r.advise("read", err)
	}
	dir := os.NewFile(uintptr(fd), r.Path)
	defer dir.Close()
	names, err := dir.Readdirnames(rosterNames)
	if err != nil && err != io.EOF {
		return nil, r.advise("read", err)
	}
	names, b := slices.DeleteFunc(names, func(name string) bool { return !r.isOther(name) }), make([]byte, rosterBytes)
	for _, name := range names[:min(len(names), rosterMost)] {
		e, ok, err := r.read(name, b)
		if err != nil {
			return nil, r.advise("read", err)
		}
		if ok {
			list = append(list, e)
		}
	}
	return list, nil
}

// isOther reports that a name is that of another engine's file.
func (r *Roster) isOther(name string) bool {
	return strings.HasPrefix(name, r.prefix) && strings.TrimSuffix(name, freshName) != strings.TrimSuffix(r.name, freshName)
}

// read reads another engine's file, into b; false: it is none, or not of a live engine. The file of a dead engine is removed. The error is one of
// this process.
func (r *Roster) read(name string, b []byte) (e Entry, ok bool, err error) {
	fd, err := r.open(name, unix.O_RDONLY)
	if Exhausted(err) {
		return e, false, err
	} else if err != nil {
		return e, false, nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	lock := unix.Flock_t{Type: unix.F_RDLCK} // a lock of those alone who may write to the file keeps it
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &lock) != nil {
		return e, false, nil
	}
	fresh, dead := strings.HasSuffix(name, freshName), lock.Type == unix.F_UNLCK
	if dead && (!fresh || time.Since(time.Unix(st.Mtim.Unix())) > rosterFresh) {
		_ = unix.Unlinkat(r.dir, name, 0) // for good: no name is used twice
	}
	for tries := 0; tries < 3 && !dead && !fresh && !ok; tries++ {
		n, _ := unix.Pread(fd, b, 0)
		e, ok = parseEntry(b[:max(n, 0)])
	}
	return e, ok, nil
}

// Cleaned reports that somebody has removed our entry: other engines do not see it.
func (r *Roster) Cleaned() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file >= 0 && !linked(r.file)
}

// events takes what the kernel has noted of other engines' files since the last call. Under mu.
func (r *Roster) events() (seen bool) {
	var buf [4096]byte
	for range 64 {
		n, err := unix.Read(r.notify, buf[:])
		if err != nil || n <= 0 {
			break
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:end], "\x00"))
			seen = seen || name == "" || r.isOther(name) // no name: events were lost, or the folder is gone
			b = b[end:]
		}
	}
	return seen
}

// advise makes an error one that says which folder it is about, and what to do.
func (r *Roster) advise(what string, err error) error {
	folder := r.Path
	var at *fs.PathError
	if errors.As(err, &at) { // it may be about a folder above
		what, folder, err = at.Op, at.Path, at.Err
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	user := unix.Geteuid()
	write := fmt.Sprintf("let user %d write to it: chmod 1777 %s", user, folder)
	if what == "mkdir" {
		write = fmt.Sprintf("let user %d write to %s, or make the folder: mkdir -m 1777 %s", user, filepath.Dir(folder), folder)
	}
	advice := map[unix.Errno]string{
		unix.ENOENT: "make it, and open it to its users: mkdir -m 1777 " + folder, unix.EROFS: "mount it for writing", unix.ENOSPC: "its file system is full: make room",
		unix.EDQUOT: fmt.Sprintf("the quota of user %d is used up: make room", user), unix.EACCES: write, unix.EPERM: write, unix.ENOTDIR: "remove the file that is in its place",
	}[errno]
	text := fmt.Sprintf("%s %s: ", what, folder)
	if errno == 0 {
		text = "" // the error names the folder
	}
	for _, also := range []string{"name a folder of this user by option local_dir", "set option rail_share=off: then each agent takes the same near devices"} {
		if advice != "" {
			advice += ", or "
		}
		advice += also
	}
	return fmt.Errorf("%s%w; %s", text, err, advice)
}
