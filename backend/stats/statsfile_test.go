package stats

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/test/skip"
)

// Usual values of stats_file work: an existing file, a new file, a device, and an open descriptor, which keeps its
// earlier content.
func TestStatsFileWritten(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("old", []byte(strings.Repeat("x", 1000)), 0o600))
	for _, name := range []string{"old", "new"} {
		path, err := Check(name)
		require.NoError(t, err)
		require.True(t, filepath.IsAbs(path))
		require.NoError(t, Write(path, []byte("counters\n"), 30*time.Second))
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, "counters\n", string(b))
	}
	path, err := Check("/dev/null")
	require.NoError(t, err)
	require.NoError(t, Write(path, []byte("counters\n"), 30*time.Second))

	log, err := os.Create("log")
	require.NoError(t, err)
	defer log.Close()
	_, err = log.WriteString("before\n")
	require.NoError(t, err)
	path, err = Check(fmt.Sprint("/dev/fd/", log.Fd()))
	require.NoError(t, err)
	require.NoError(t, Write(path, []byte("counters\n"), 30*time.Second))
	_, err = log.WriteString("after\n")
	require.NoError(t, err)
	b, err := os.ReadFile("log")
	require.NoError(t, err)
	require.Equal(t, "before\ncounters\nafter\n", string(b))
}

// Write gives up soon on a descriptor that takes no data, and on a named pipe that appeared after Check.
func TestStatsFileStuck(t *testing.T) {
	var fds [2]int
	require.NoError(t, unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	defer unix.Close(fds[0]) // the write end stays open
	for err := error(nil); err == nil; {
		_, err = unix.Write(fds[1], make([]byte, 4096))
	}
	path, err := Check(fmt.Sprint("/dev/fd/", fds[1]))
	require.NoError(t, err)
	require.ErrorContains(t, Write(path, []byte("counters\n"), time.Millisecond), "write timed out after 1ms")

	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	require.ErrorIs(t, Write(fifo, []byte("counters\n"), 30*time.Second), unix.ENXIO)
	r, err := os.OpenFile(fifo, os.O_RDWR, 0)
	require.NoError(t, err)
	defer r.Close()
	require.ErrorContains(t, Write(fifo, []byte("counters\n"), 30*time.Second), "is a named pipe")
}

// Append keeps what a file has, and refuses what is no file.
func TestAppend(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "log")
	for _, line := range []string{"one\n", "two\n"} {
		fd, err := Append(path)
		require.NoError(t, err)
		_, err = unix.Write(fd, []byte(line))
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\n", string(text))

	fd, err := Append("/dev/stderr")
	require.NoError(t, err)
	require.Equal(t, syscall.Stderr, fd)
	_, err = Append(filepath.Join(folder, "none", "log"))
	require.ErrorContains(t, err, "none: no such file or directory")
	_, err = Append(folder)
	require.Error(t, err)
	fifo := filepath.Join(folder, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	r, err := os.OpenFile(fifo, os.O_RDWR, 0)
	require.NoError(t, err)
	defer r.Close()
	_, err = Append(fifo)
	require.ErrorContains(t, err, "neither a file nor a terminal")
}

// Append follows no link of another user, as Write: see TestOthersLinks.
func TestAppendOthersLinks(t *testing.T) {
	skip.UnlessRoot(t, "needs root to give files to another user")
	folder := filepath.Join(t.TempDir(), "folder")
	require.NoError(t, os.Mkdir(folder, 0o755))
	private := filepath.Join(t.TempDir(), "private")
	require.NoError(t, os.WriteFile(private, nil, 0o600))
	link := filepath.Join(folder, "soft")
	require.NoError(t, os.Symlink(private, link))
	fd, err := Append(link)
	require.NoError(t, err, "a link of root")
	require.NoError(t, unix.Close(fd))
	require.NoError(t, os.Lchown(link, other, other))
	_, err = Append(link)
	require.ErrorContains(t, err, "symbolic link of user 54321")
}

func TestExpand(t *testing.T) {
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("/x/%d-%s-a_..b.json", os.Getpid(), part(host)), Expand("/x/%p-%h-%a.json", "a/..b"))
	require.Equal(t, "/x/%a%q%", Expand("/x/%%a%q%", "ann"))
}

// A reader never sees a part of the counters, and a file keeps its mode.
func TestReplacedWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte("first"), 0o640))
	old, err := os.Open(path)
	require.NoError(t, err)
	defer old.Close()
	require.NoError(t, Write(path, []byte("second, which is longer"), 30*time.Second))
	b := make([]byte, 100)
	n, err := old.Read(b)
	require.NoError(t, err)
	require.Equal(t, "first", string(b[:n]), "who has it open reads on")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// A write that does not end keeps one thread: later writes to that path fail, and those to other paths go on.
func TestTurns(t *testing.T) {
	var turns turnsOf
	release, ok := turns.take("a", nil)
	require.True(t, ok)
	now := make(chan time.Time)
	close(now)
	_, ok = turns.take("a", now)
	require.False(t, ok)
	other, ok := turns.take("b", nil)
	require.True(t, ok)
	other()
	next := make(chan func())
	go func() {
		release, _ := turns.take("a", nil)
		next <- release
	}()
	release()
	(<-next)()
	require.Empty(t, turns.paths)
}

const other = 54321 // another user's id

// TestOthersLinks: root writes into a folder of another user. That user's symbolic and hard links, of the file or of a
// folder on the way, lead nowhere. Links of root do.
func TestOthersLinks(t *testing.T) {
	skip.UnlessRoot(t, "needs root to give files to another user")
	private := filepath.Join(t.TempDir(), "private")
	require.NoError(t, os.WriteFile(private, []byte("precious"), 0o600))
	folder := filepath.Join(t.TempDir(), "folder")
	require.NoError(t, os.Mkdir(folder, 0o755))
	require.NoError(t, os.Chown(folder, other, other))
	in := func(name string) string { return filepath.Join(folder, name) }
	require.NoError(t, os.Symlink(private, in("soft")))
	require.NoError(t, os.Symlink(filepath.Dir(private), in("on-the-way")))
	require.NoError(t, os.Symlink("soft", in("twice")))
	for _, name := range []string{"soft", "on-the-way"} {
		require.NoError(t, os.Lchown(in(name), other, other))
	}
	for _, name := range []string{"soft", "twice", "on-the-way/private", "on-the-way/new"} {
		_, err := Check(in(name))
		require.ErrorContains(t, err, "symbolic link of user 54321", name)
		require.ErrorContains(t, Write(in(name), []byte("x"), 30*time.Second), "symbolic link of user 54321", name)
	}
	require.NoError(t, os.WriteFile(in("file"), []byte("x"), 0o600))
	require.NoError(t, os.Chown(in("file"), other, other))
	require.NoError(t, Write(in("file"), []byte("counters"), 30*time.Second))
	require.NoError(t, os.Link(in("file"), in("hard")))
	require.ErrorContains(t, Write(in("hard"), []byte("x"), 30*time.Second), "hard links")
	require.NoError(t, os.Link(private, in("ours"))) // any user's link, without fs.protected_hardlinks
	require.ErrorContains(t, Write(in("ours"), []byte("x"), 30*time.Second), "hard links")
	_, err := Append(in("ours"))
	require.ErrorContains(t, err, "hard links")
	require.NoError(t, os.Link(private, private+"2")) // nobody else can make one there
	fd, err := Append(private + "2")
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	require.NoError(t, os.Remove(private+"2"))
	require.NoError(t, os.Remove(in("ours")))
	for name, want := range map[string]string{private: "precious", in("file"): "counters"} {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, want, string(b))
	}
	require.NoFileExists(t, filepath.Join(filepath.Dir(private), "new"))

	for _, name := range []string{"soft", "on-the-way"} {
		require.NoError(t, os.Lchown(in(name), 0, 0))
	}
	for i, name := range []string{"soft", "twice", "on-the-way/private"} {
		path, err := Check(in(name))
		require.NoError(t, err)
		data := []byte{'0' + byte(i)}
		require.NoError(t, Write(path, data, 30*time.Second))
		b, err := os.ReadFile(private)
		require.NoError(t, err)
		require.Equal(t, data, b)
	}
	require.NoError(t, os.Symlink("loop", in("loop")))
	require.Error(t, Write(in("loop"), []byte("x"), 30*time.Second))
}
