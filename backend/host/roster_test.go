package host_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/host"
	"gorail/test/skip"
)

// keep is a ForkCloser that lists descriptors, as the core does.
type keep struct {
	mu  sync.Mutex
	fds []int
}

func (k *keep) closer(fd int) (release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fds = append(k.fds, fd)
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		i := slices.Index(k.fds, fd)
		k.fds = slices.Delete(k.fds, i, i+1)
	}
}

func openRoster(t testing.TB, dir string) *host.Roster {
	t.Helper()
	r, err := host.OpenRoster(dir, 0o700, (&keep{}).closer)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

func entry(text string) host.Entry {
	return host.Entry{Weights: map[string]float64{"net/0000:5e:00.0": 0.5, "net/0000:5f:00.0": 0.5}, Text: text}
}

func enter(t testing.TB, r *host.Roster, e host.Entry) (others []host.Entry) {
	t.Helper()
	require.NoError(t, r.Enter(func(list []host.Entry) host.Entry { others = list; return e }))
	return others
}

func seen(t testing.TB, r *host.Roster) (texts []string) {
	t.Helper()
	list, err := r.Others()
	require.NoError(t, err)
	for _, e := range list {
		texts = append(texts, e.Text)
	}
	slices.Sort(texts)
	return texts
}

// files are the names in the folder that belong to engines.
func files(t testing.TB, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "gorail-rails-*"))
	require.NoError(t, err)
	return list
}

func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "not within a minute: %s", what)
	}
}

// Engines see each other: of one process, too, where one engine's look at a file does not end the lock of another.
func TestRoster(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "roster")
	ann, bob := openRoster(t, dir), openRoster(t, dir)
	require.Empty(t, enter(t, ann, entry("ann")))
	require.Equal(t, []host.Entry{entry("ann")}, enter(t, bob, entry("bob")))
	require.Equal(t, []string{"ann"}, seen(t, bob))
	require.Equal(t, []string{"bob"}, seen(t, ann))
	require.Equal(t, []string{"ann"}, seen(t, bob))
	require.Equal(t, []string{"ann", "bob"}, seen(t, openRoster(t, dir)))

	for bob.Changed() { // until what is above is over
		seen(t, bob)
	}
	require.NoError(t, bob.Update(entry("bobby")))
	require.Empty(t, enter(t, bob, entry("bob"))[1:])
	require.False(t, bob.Changed(), "one's own changes are none")
	require.NoError(t, ann.Update(host.Entry{Text: "a"})) // shorter
	require.True(t, bob.Changed())
	require.Equal(t, []string{"a"}, seen(t, bob))
	ann.Close()
	require.True(t, bob.Changed())
	require.Empty(t, seen(t, bob))
	require.Len(t, files(t, dir), 1)
	require.Error(t, ann.Update(entry("ann")), "it is closed")
	require.Len(t, files(t, dir), 1)
}

// A process that is killed is gone at once, and its file with the next look.
func TestRosterKilled(t *testing.T) {
	dir := t.TempDir()
	ann, p := openRoster(t, dir), startProcess(t, dir)
	enter(t, ann, entry("ann"))
	require.Equal(t, "0 <nil>", p.do("enter"))
	require.Equal(t, []string{fmt.Sprint(p.cmd.Process.Pid)}, seen(t, ann))
	for ann.Changed() {
		seen(t, ann)
	}
	p.kill()
	soon(t, "the death shows", ann.Changed)
	soon(t, "it is gone", func() bool { return len(seen(t, ann)) == 0 })
	require.Len(t, files(t, dir), 1)
}

// A child of fork does not keep a dead engine. It would if it did not close what the ForkCloser lists.
func TestRosterFork(t *testing.T) {
	dir := t.TempDir()
	ann := openRoster(t, dir)
	for _, how := range []string{"fork", "careless fork"} {
		p := startProcess(t, dir)
		require.Equal(t, "0 <nil>", p.do("enter"))
		var child int
		_, err := fmt.Sscan(p.do(how), &child)
		require.NoError(t, err)
		require.Positive(t, child)
		defer func() { _ = syscall.Kill(child, syscall.SIGKILL) }()
		p.kill()
		require.NoError(t, syscall.Kill(child, 0), "the child lives")
		if how == "fork" {
			soon(t, "the engine is gone", func() bool { return len(seen(t, ann)) == 0 })
			continue
		}
		require.Len(t, seen(t, ann), 1)
		require.NoError(t, syscall.Kill(child, syscall.SIGKILL))
		soon(t, "the engine is gone with the child", func() bool { return len(seen(t, ann)) == 0 })
	}
}

// Two engines that enter at once never take the same device while another is idle.
func TestRosterAtOnce(t *testing.T) {
	dir := t.TempDir()
	var all []*process
	for range 2 {
		all = append(all, startProcess(t, dir))
	}
	for round := range 100 {
		for _, p := range all {
			p.tell("enter")
		}
		a, b := all[0].answer(), all[1].answer()
		require.NotEqual(t, a, b, "round %d", round)
		for _, took := range []string{a, b} {
			require.Regexp(t, "^[0-3] <nil>$", took)
		}
		for _, p := range all {
			require.Equal(t, "left", p.do("leave"))
		}
	}
}

// A reader never sees half of an entry, and ignores what it cannot read. Files that are no engine's stay.
func TestRosterFiles(t *testing.T) {
	dir := t.TempDir()
	ann, bob := openRoster(t, dir), openRoster(t, dir)
	enter(t, ann, entry("ann"))
	file := files(t, dir)[0]
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	write := func(path string, b []byte) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, b, 0o600))
	}
	for _, b := range [][]byte{nil, whole[:len(whole)/2], append([]byte("x"), whole[1:]...), []byte("00000000 -1\n"), []byte("0 999999\n"), make([]byte, 1<<20)} {
		write(file, b)
		require.Empty(t, seen(t, bob))
		require.FileExists(t, file, "its engine lives")
	}
	require.NoError(t, ann.Update(entry("ann")))
	require.Equal(t, []string{"ann"}, seen(t, bob))

	beside := func(end string) string { return file[:len(file)-len("0000")] + end }
	write(beside("dead"), whole)
	require.NoError(t, unix.Mkfifo(beside("fifo"), 0o600))
	victim := filepath.Join(dir, "victim")
	write(victim, whole)
	require.NoError(t, os.Symlink("victim", beside("link")))
	write(beside("0.new"), nil)
	write(beside("1.new"), nil)
	hour := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(beside("1.new"), hour, hour))
	require.Equal(t, []string{"ann"}, seen(t, bob))
	require.NoFileExists(t, beside("dead"))
	require.NoFileExists(t, beside("1.new"), "its process has died before it entered")
	for _, stays := range []string{beside("fifo"), beside("link"), victim, beside("0.new")} {
		_, err := os.Lstat(stays)
		require.NoError(t, err, stays)
	}

	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = ann.Update(entry("ann" + strings.Repeat("x", i*997%4000)))
			}
		}
	})
	for range 3000 {
		list, err := bob.Others()
		require.NoError(t, err)
		if len(list) > 0 { // else three writes have met three reads
			require.Regexp(t, "^annx*$", list[0].Text)
		}
	}
	close(stop)
	writer.Wait()
}

// Who cleans the folder up does not hide an engine for long: its next entry is there again.
func TestRosterCleaned(t *testing.T) {
	dir := t.TempDir()
	ann, bob := openRoster(t, dir), openRoster(t, dir)
	enter(t, ann, entry("ann"))
	all, err := filepath.Glob(dir + "/*")
	require.NoError(t, err)
	require.Len(t, all, 2)
	for _, path := range all {
		require.NoError(t, os.Remove(path))
	}
	require.Empty(t, seen(t, bob))
	enter(t, ann, entry("ann"))
	require.Equal(t, []string{"ann"}, seen(t, bob))
	require.NoError(t, os.RemoveAll(dir))
	err = ann.Enter(func([]host.Entry) host.Entry { return entry("ann") })
	require.ErrorContains(t, err, "mkdir -m 1777")
}

// A process that keeps the lock of the folder holds up others for a second. Their entries are there all the same.
func TestRosterBusy(t *testing.T) {
	dir := t.TempDir()
	ann, bob := openRoster(t, dir), openRoster(t, dir)
	require.NoError(t, ann.Enter(func([]host.Entry) host.Entry {
		began := time.Now()
		require.ErrorIs(t, bob.Enter(func([]host.Entry) host.Entry { return entry("bob") }), host.ErrRosterBusy)
		require.GreaterOrEqual(t, time.Since(began), time.Second)
		return entry("ann")
	}))
	require.Equal(t, []string{"bob"}, seen(t, ann))
}

// A stopped process keeps the lock: all engines of a process together wait for it for a second, however often they enter. When it is free again, all is as before.
func TestRosterStopped(t *testing.T) {
	dir := t.TempDir()
	ann, bob, eve := openRoster(t, dir), openRoster(t, dir), openRoster(t, dir)
	busy := 0
	enters := func() time.Duration {
		began := time.Now()
		busy = 0
		for i := range 20 {
			r := []*host.Roster{bob, eve}[i%2]
			if err := r.Enter(func([]host.Entry) host.Entry { return entry(fmt.Sprint(i)) }); err != nil {
				require.ErrorIs(t, err, host.ErrRosterBusy)
				busy++
			}
		}
		return time.Since(began)
	}
	require.NoError(t, ann.Enter(func([]host.Entry) host.Entry {
		took := enters()
		t.Logf("20 choices beside a process that keeps the lock take %v", took)
		require.Equal(t, 20, busy)
		require.GreaterOrEqual(t, took, time.Second)
		require.Less(t, took, 5*time.Second, "each waits for a second")
		return entry("ann")
	}))
	enters()
	require.Zero(t, busy)
	require.Len(t, seen(t, ann), 2)
}

// Who may only read an entry cannot keep it when its engine has died, by whatever lock.
func TestRosterOthersLocks(t *testing.T) {
	dir := t.TempDir()
	ann, p := openRoster(t, dir), startProcess(t, dir)
	require.Equal(t, "0 <nil>", p.do("enter"))
	f, err := os.Open(files(t, dir)[0])
	require.NoError(t, err)
	defer f.Close()
	p.kill()
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK}))
	require.ErrorIs(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}), unix.EBADF)
	soon(t, "the engine is gone", func() bool { return len(seen(t, ann)) == 0 })
	require.Empty(t, files(t, dir))
}

// Folders in which other users decide are refused, with what to do. A folder for all users keeps its lock and its entries open to them.
func TestRosterFolders(t *testing.T) {
	top := t.TempDir()
	_, err := host.OpenRoster(filepath.Join(top, "none"), 0, nil)
	require.ErrorContains(t, err, "mkdir -m 1777")
	require.ErrorContains(t, err, "rail_share=off")
	_, err = host.OpenRoster("shm", 0o700, nil)
	require.ErrorContains(t, err, "must begin with /")
	require.ErrorContains(t, err, "rail_share=off")
	_, err = host.OpenRoster(filepath.Join(top, "none", "below"), 0o700, nil)
	require.Error(t, err)
	require.NoDirExists(t, filepath.Join(top, "none"), "only the folder itself is made")
	path := filepath.Join(top, "file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = host.OpenRoster(path, 0o700, nil)
	require.ErrorContains(t, err, "not a directory")

	open := filepath.Join(top, "open")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, unix.Chmod(open, 0o777))
	_, err = host.OpenRoster(open, 0o700, nil)
	require.ErrorContains(t, err, "chmod o-w")
	require.NoError(t, unix.Chmod(open, 0o1777))
	enter(t, openRoster(t, open), entry("ann"))
	for pattern, mode := range map[string]os.FileMode{"gorail-rails-*": 0o644, "gorail-rails.lock": 0o666} {
		list, err := filepath.Glob(filepath.Join(open, pattern))
		require.NoError(t, err)
		require.Len(t, list, 1)
		info, err := os.Stat(list[0])
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), pattern)
	}
	private := filepath.Join(top, "private")
	enter(t, openRoster(t, private), entry("ann"))
	info, err := os.Stat(private)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	skip.UnlessRoot(t, "needs root to give files to another user")
	for name, make := range map[string]func(path string) error{
		"folder": func(path string) error { return errors.Join(os.Mkdir(path, 0o700), os.Chown(path, 54321, 54321)) },
		"link": func(path string) error {
			return errors.Join(os.Symlink("private", path), os.Lchown(path, 54321, 54321))
		},
	} {
		require.NoError(t, make(filepath.Join(open, name)))
		_, err = host.OpenRoster(filepath.Join(open, name), 0o700, nil)
		require.ErrorContains(t, err, "user 54321", name)
	}
}

// A folder that is mounted read-only takes no entry, and says so.
func TestRosterReadOnly(t *testing.T) {
	dir := t.TempDir()
	var mounts error // why there are none of the test's own
	var entered, unmade error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread's mounts are its own
		mounts = unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if mounts == nil {
			mounts = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if mounts == nil {
			mounts = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "mode=700")
		}
		if mounts != nil {
			return
		}
		_, unmade = host.OpenRoster(filepath.Join(dir, "made"), 0o700, nil)
		r, err := host.OpenRoster(dir, 0o700, (&keep{}).closer)
		if err != nil {
			entered = err
			return
		}
		defer r.Close()
		entered = r.Enter(func([]host.Entry) host.Entry { return entry("ann") })
	}()
	<-done
	skip.OrFail(t, mounts)
	require.ErrorIs(t, entered, unix.EROFS)
	require.ErrorContains(t, entered, "mount it for writing")
	require.ErrorContains(t, unmade, "mkdir "+filepath.Join(dir, "made")+": read-only file system; mount it for writing, or name a folder of this user by option local_dir, or set option rail_share=off")
}

// BenchmarkRoster is what an engine pays: to enter beside seven others, and to ask whether anything has changed.
func BenchmarkRoster(b *testing.B) {
	for _, dir := range []string{"/dev/shm", ""} {
		name := cmp.Or(dir, "disk")
		if dir = b.TempDir(); name != "disk" {
			var err error
			dir, err = os.MkdirTemp(name, "gorail-test-")
			require.NoError(b, err)
			defer os.RemoveAll(dir)
		}
		for i := range 7 {
			enter(b, openRoster(b, dir), entry(fmt.Sprint(i)))
		}
		b.Run("open and enter/"+name, func(b *testing.B) {
			for b.Loop() {
				r, err := host.OpenRoster(dir, 0o700, (&keep{}).closer)
				require.NoError(b, err)
				enter(b, r, entry("ann"))
				b.StopTimer()
				r.Close() // waits for the kernel to end inotify, some ms
				b.StartTimer()
			}
		})
		r := openRoster(b, dir)
		b.Run("enter/"+name, func(b *testing.B) {
			for b.Loop() {
				enter(b, r, entry("ann"))
			}
		})
		b.Run("changed/"+name, func(b *testing.B) {
			for r.Changed() {
				seen(b, r)
			}
			for b.Loop() {
				if r.Changed() {
					b.Fatal("nothing has changed")
				}
			}
		})
	}
}
