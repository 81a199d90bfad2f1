package ipc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/test/skip"
)

// backlog has room for the connections of many sweeps.
const sweepBacklog = 4096

// shared is a folder as pods mount it: everybody may write, and nobody removes another's files.
func shared(t *testing.T) string {
	dir := t.TempDir()
	for at := dir; at != os.TempDir(); at = filepath.Dir(at) { // other users get there
		require.NoError(t, os.Chmod(at, 0o755))
	}
	require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
	return dir
}

func openShared(t *testing.T) *Folder {
	f, err := OpenFolder(shared(t))
	require.NoError(t, err)
	t.Cleanup(f.Close)
	return f
}

func names(t *testing.T, f *Folder) (names []string) {
	all, err := os.ReadDir(f.Path())
	require.NoError(t, err)
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

// elsewhere is the place as a process of another network namespace sees it.
func elsewhere(p *Place) *Place {
	far := *p
	far.NetNS++
	return &far
}

// TestFolderRules: a folder in which somebody else could replace sockets is refused, and the error says what to do.
func TestFolderRules(t *testing.T) {
	at := t.TempDir()
	in := func(name string) string { return filepath.Join(at, name) }
	folder := func(name string, mode os.FileMode) string {
		require.NoError(t, os.Mkdir(in(name), 0o700))
		require.NoError(t, os.Chmod(in(name), mode))
		return in(name)
	}
	require.NoError(t, os.WriteFile(in("file"), nil, 0o600))
	require.NoError(t, os.Symlink(folder("real", 0o700), in("link")))
	for _, c := range []struct {
		path  string
		errno unix.Errno
		says  string
	}{
		{folder("private", 0o700), 0, ""},
		{folder("readable", 0o755), 0, ""},
		{folder("sticky", 0o777|os.ModeSticky), 0, ""},
		{in("real") + "/", 0, ""},
		{in("link"), unix.ELOOP, "symbolic link: name the folder itself"},
		{in("link") + "/", unix.ELOOP, "symbolic link"},
		{in("file"), unix.ENOTDIR, "it is no folder"},
		{in("missing"), unix.ENOENT, "on the host make it: mkdir -m 1777 " + in("missing")},
		{"sockets", unix.EINVAL, "must begin with /"},
		{folder("open", 0o777), unix.EPERM, "chmod +t " + in("open")},
		{folder("group", 0o770), unix.EPERM, "chmod +t " + in("group")},
	} {
		f, err := OpenFolder(c.path)
		if c.errno == 0 {
			require.NoError(t, err, c.path)
			f.Close()
			continue
		}
		require.ErrorIs(t, err, c.errno, c.path)
		require.ErrorContains(t, err, c.says)
		require.ErrorContains(t, err, "folder "+filepath.Clean(c.path))
	}
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(in("private"), user, user))
		require.NoError(t, os.Mkdir(in("private/in"), 0o700))
		_, err := OpenFolder(in("private/in"))
		require.ErrorIs(t, err, unix.EPERM)
		require.ErrorContains(t, err, fmt.Sprintf("folder %s belongs to user %d", in("private"), user))
		_, err = OpenFolder(in("private"))
		require.ErrorIs(t, err, unix.EPERM)
		require.ErrorContains(t, err, fmt.Sprintf("it belongs to user %d", user))
	}
}

// TestFolderStays: an opened folder stays the same when its path leads elsewhere, and its path may be longer than a
// socket's name.
func TestFolderStays(t *testing.T) {
	at := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	require.NoError(t, os.MkdirAll(at, 0o700))
	f, err := OpenFolder(at)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.Rename(at, at+"-moved"))
	require.NoError(t, os.Symlink(t.TempDir(), at))
	l, err := f.Listen(16, SameUser)
	require.NoError(t, err)
	all, err := os.ReadDir(at + "-moved")
	require.NoError(t, err)
	require.Len(t, all, 1)
	c, err := Dial(elsewhere(l.Place()), f)
	require.NoError(t, err)
	c.Close()
	l.Close()
	all, err = os.ReadDir(at + "-moved")
	require.NoError(t, err)
	require.Empty(t, all)

	require.NoError(t, os.Remove(at+"-moved"))
	_, err = f.Listen(16, SameUser)
	require.ErrorIs(t, err, unix.ENOENT)
	require.ErrorContains(t, err, "the folder was removed")
}

// TestDial: a peer of our network namespace is reached by its abstract name, others in the folder. The error names the
// obstacle.
func TestDial(t *testing.T) {
	f := openShared(t)
	h := &Host{Folder: f}
	s, err := h.Listen(16)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.NotInside)
	for _, c := range []struct {
		to *Place
		by *Listener
		in *Folder
	}{{s.Place(), s.list[0], nil}, {s.Place(), s.list[0], f}, {elsewhere(s.Place()), s.list[1], f}} {
		d, err := Dial(c.to, c.in)
		require.NoError(t, err)
		accept(t, c.by)
		d.Close()
	}
	_, err = Dial(elsewhere(s.Place()), nil)
	require.ErrorIs(t, err, unix.EADDRNOTAVAIL)
	require.ErrorContains(t, err, "this process has no folder")
	without := *elsewhere(s.Place())
	without.File = File{}
	_, err = Dial(&without, f)
	require.ErrorIs(t, err, unix.EADDRNOTAVAIL)
	require.ErrorContains(t, err, "the peer is in another network namespace and has no socket in a folder")
	other := openShared(t)
	_, err = Dial(elsewhere(s.Place()), other)
	require.ErrorIs(t, err, unix.ENOENT)
	require.ErrorContains(t, err, "no socket of the peer in "+other.Path()+": do both mount the same folder of the host?")
}

// inside listens in a folder, prints its place, and waits until its input ends.
func inside(args []string) error {
	f, err := OpenFolder(args[0])
	if err != nil {
		return err
	}
	l, err := f.Listen(16, SameUser)
	if err != nil {
		return err
	}
	fmt.Println(at(l))
	readLine()
	return nil
}

// TestSweep: a sweep removes the old socket of a dead process and nothing else.
func TestSweep(t *testing.T) {
	f := openShared(t)
	dead, stopped := start(t, "inside "+f.Path(), nil), start(t, "inside "+f.Path(), nil)
	deadAt, stoppedAt := elsewhere(place(dead.line())), elsewhere(place(stopped.line()))
	require.NoError(t, stopped.Process.Signal(syscall.SIGSTOP))
	require.NoError(t, dead.Process.Kill())
	_ = dead.Wait()
	_, err := Dial(deadAt, f)
	require.ErrorIs(t, err, unix.ECONNREFUSED)
	require.ErrorContains(t, err, "the peer has ended")
	keep := File{7}.Name()
	require.NoError(t, os.WriteFile(filepath.Join(f.Path(), keep), nil, 0o600))
	socketFile(t, f, "other.sock")
	socketFile(t, f, strings.ToUpper(File{0xab}.Name()))
	another := "another-" + strings.TrimPrefix(File{3}.Name(), bootMark())
	require.True(t, isSocketName(File{3}.Name()) && !isSocketName(another))
	socketFile(t, f, another) // it may live on another host that shares the folder
	var theirs string
	if os.Geteuid() == 0 {
		theirs = File{8}.Name()
		socketFile(t, f, theirs)
		require.NoError(t, os.Lchown(filepath.Join(f.Path(), theirs), user, user))
	}
	socketFile(t, f, File{9}.Name()+fresh)
	before := len(names(t, f))

	f.Sweep()
	require.Len(t, names(t, f), before-1)
	require.Contains(t, names(t, f), File{9}.Name()+fresh, "its process may be about to listen")
	f.sweep(time.Now().Add(2 * sweepAge))
	left := names(t, f)
	require.Len(t, left, before-2)
	require.NotContains(t, left, File{9}.Name()+fresh)
	require.NotContains(t, left, deadAt.File.Name())
	require.Contains(t, left, stoppedAt.File.Name(), "a stopped process lives")
	c, err := Dial(stoppedAt, f)
	require.NoError(t, err)
	c.Close()

	require.False(t, f.RemoveDead(stoppedAt.File))
	require.Contains(t, names(t, f), stoppedAt.File.Name())
	require.NoError(t, stopped.Process.Kill())
	_ = stopped.Wait()
	require.True(t, f.RemoveDead(stoppedAt.File))
	require.NotContains(t, names(t, f), stoppedAt.File.Name())
	require.True(t, f.RemoveDead(stoppedAt.File), "removed by another one")
}

// socketFile leaves a socket on which nothing listens.
func socketFile(t *testing.T, f *Folder, name string) {
	sock, err := unix.Socket(unix.AF_UNIX, sockType, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(sock, &unix.SockaddrUnix{Name: f.at(name)}))
	require.NoError(t, unix.Close(sock))
}

// TestSweepAmongMany: a sweep looks at a bounded number of files, and others' files do not keep it from a dead socket
// for ever.
func TestSweepAmongMany(t *testing.T) {
	f := openShared(t)
	for i := range 3 * sweepMost {
		require.NoError(t, os.WriteFile(filepath.Join(f.Path(), fmt.Sprint("junk", i)), nil, 0o600))
	}
	socketFile(t, f, File{1}.Name())
	for range 100 { // a third of the files each time
		f.sweep(time.Now().Add(2 * sweepAge))
		if len(names(t, f)) == 3*sweepMost {
			return
		}
	}
	t.Fatal("the dead socket is still there")
}

// TestSweepBesideListen: no sweep removes the socket of a process that begins to listen, however long that takes.
func TestSweepBesideListen(t *testing.T) {
	f := openShared(t)
	done := make(chan struct{})
	var sweepers sync.WaitGroup
	sweepers.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				f.sweep(time.Now().Add(2 * sweepAge))
			}
		}
	})
	defer sweepers.Wait()
	defer close(done)
	made := 0
	for range 200 {
		l, err := f.Listen(sweepBacklog, SameUser)
		if err != nil { // swept three times in a row
			require.ErrorIs(t, err, unix.ENOENT)
			continue
		}
		made++
		c, err := Dial(elsewhere(l.Place()), f)
		require.NoError(t, err)
		c.Close()
		l.Close()
	}
	require.Greater(t, made, 100)
}

// TestManyEngines: 200 engines meet in one folder. Each is reached, none sweeps another's socket, and nothing is left.
func TestManyEngines(t *testing.T) {
	const engines = 200
	path := shared(t)
	var all []*Sockets
	var folders []*Folder
	for range engines {
		f, err := OpenFolder(path)
		require.NoError(t, err)
		f.sweep(time.Now().Add(2 * sweepAge))
		h := &Host{Folder: f}
		s, err := h.Listen(sweepBacklog)
		require.NoError(t, err)
		require.NoError(t, s.NotInside)
		all, folders = append(all, s), append(folders, f)
	}
	require.Len(t, names(t, folders[0]), engines)
	for i, s := range all {
		c, err := Dial(elsewhere(s.Place()), folders[(i+1)%engines])
		require.NoError(t, err)
		require.NoError(t, c.Send([]byte{byte(i)}))
		d, err := s.list[1].anybody() // sweeps do not connect
		require.NoError(t, err)
		var b [1]byte
		n, err := d.Recv(b[:])
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, byte(i), b[0])
		d.Close()
		c.Close()
	}
	for _, s := range all {
		s.Close()
	}
	require.Empty(t, names(t, folders[0]))
	for _, f := range folders {
		f.Close()
	}
}

// mounted tries folders that take no socket, in mounts of its own, and prints the errors.
func mounted(args []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, c := range []struct {
		name, options string
		flags         uintptr
	}{{"full", "nr_inodes=3", 0}, {"readonly", "", unix.MS_RDONLY}} {
		at := filepath.Join(args[0], c.name)
		if err := unix.Mount("tmpfs", at, "tmpfs", c.flags, "mode=1777,"+c.options); err != nil {
			return err
		}
		f, err := OpenFolder(at)
		if err != nil {
			return err
		}
		h := &Host{Folder: f}
		for range 3 { // three files and folders are all
			s, err := h.Listen(16)
			if err != nil {
				return err
			}
			if d, err := Dial(s.Place(), nil); err != nil {
				return err
			} else {
				d.Close()
			}
			if s.NotInside != nil {
				fmt.Println(s.NotInside)
				break
			}
		}
	}
	return nil
}

// TestFullFolder: a full or read-only folder takes no socket. The error says so, and peers of this network namespace
// connect.
func TestFullFolder(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a small file system")
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(dir+"/full", 0o700))
	require.NoError(t, os.Mkdir(dir+"/readonly", 0o700))
	p := start(t, "mounted "+dir, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS})
	full := p.line()
	require.Contains(t, full, "no space left")
	require.Contains(t, full, "the folder's file system is full: remove files there")
	readonly := p.line()
	require.Contains(t, readonly, "read-only file system")
	require.Contains(t, readonly, "mount it for writing")
	p.endedWell()
}

// creates listens in a folder under a umask, and prints the mode of the socket or the error.
func creates(args []string) error {
	unix.Umask(0o777)
	f, err := OpenFolder(args[0])
	if err != nil {
		return err
	}
	for _, users := range []Users{SameUser, AnyUser} {
		l, err := f.Listen(16, users)
		if err != nil {
			fmt.Println(err)
			continue
		}
		st, err := os.Stat(filepath.Join(f.Path(), l.fileName.Name()))
		if err != nil {
			return err
		}
		fmt.Println(st.Mode())
		l.Close()
	}
	return nil
}

// TestModes: the socket's mode follows the policy, not the umask. A folder that this user may not write to takes no
// socket.
func TestModes(t *testing.T) {
	f := openShared(t)
	p := start(t, "creates "+f.Path(), nil)
	require.Equal(t, "Srw-------", p.line())
	require.Equal(t, "Srw-rw-rw-", p.line())
	p.endedWell()
	skip.UnlessRoot(t, "needs root to change users")
	require.NoError(t, os.Chmod(f.Path(), 0o755))
	p = start(t, "creates "+f.Path(), &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}})
	for range 2 {
		require.Contains(t, p.line(), fmt.Sprintf("permission denied (user %d may not write to the folder: chmod 1777 %s", user, f.Path()))
	}
	p.endedWell()
}
