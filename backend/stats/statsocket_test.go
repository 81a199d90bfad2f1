package stats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is an engine whose traces last until they are cancelled.
type source struct{ ended chan error }

func (s *source) Live() (Live, error) {
	return Live{Process: Process{Command: "python3"}, Snapshot: New("ann", nil, nil)}, nil
}

func (s *source) Trace(ctx context.Context, d time.Duration) (Trace, error) {
	if d == time.Millisecond {
		return Trace{Seconds: d.Seconds()}, nil
	}
	<-ctx.Done()
	s.ended <- ctx.Err()
	return Trace{}, errors.New("cancelled")
}

func ask(t *testing.T, path, request string) string {
	t.Helper()
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, request+"\n")
	require.NoError(t, err)
	b, err := io.ReadAll(c)
	require.NoError(t, err)
	return string(b)
}

func TestServe(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "gorail")
	require.NoError(t, Folder(folder))
	info, err := os.Stat(folder)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	s := &source{make(chan error, 2)}
	server, err := Listen(folder, "0123456789abcdef", Source{s.Live, s.Trace}, nil)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(folder, "stats-0123456789abcdef.sock"), server.Path())
	list, err := Sockets(folder)
	require.NoError(t, err)
	require.Equal(t, []string{server.Path()}, list)
	info, err = os.Stat(server.Path())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "only our user connects")

	var live Live
	require.NoError(t, json.Unmarshal([]byte(ask(t, server.Path(), "snapshot")), &live))
	require.Equal(t, "ann", live.Agent)
	require.Equal(t, "python3", live.Command)
	require.Contains(t, ask(t, server.Path(), "trace 0.001"), `"seconds":0.001`)
	var held Memory
	require.NoError(t, json.Unmarshal([]byte(ask(t, server.Path(), "memory")), &held))
	require.Positive(t, held.Objects)
	require.Greater(t, held.Bytes, held.Objects)
	require.Positive(t, held.Goroutines)
	for _, bad := range []string{"", "snap", "trace", "trace x", "trace -1", "trace 0", "trace NaN", "trace 1e9", "snapshot please"} {
		var f Failure
		require.NoError(t, json.Unmarshal([]byte(ask(t, server.Path(), bad)), &f), bad)
		require.NotEmpty(t, f.Error, bad)
	}

	leaves, err := net.Dial("unix", server.Path())
	require.NoError(t, err)
	_, err = io.WriteString(leaves, "trace 600\n")
	require.NoError(t, err)
	leaves.Close()
	require.ErrorIs(t, <-s.ended, context.Canceled, "a reader that leaves ends its trace")

	for range 2 * mostReaders { // silent ones do not keep the engine from closing
		c, err := net.Dial("unix", server.Path())
		require.NoError(t, err)
		defer c.Close()
	}
	start := time.Now()
	server.Close()
	require.Less(t, time.Since(start), patience)
	require.NoFileExists(t, server.Path())
}

// A socket that a killed process has left is removed by the next engine, and a living one stays.
func TestSweep(t *testing.T) {
	folder := t.TempDir()
	alive, err := Listen(folder, "alive", Source{}, nil)
	require.NoError(t, err)
	defer alive.Close()
	dead, err := Listen(folder, "dead", Source{}, nil)
	require.NoError(t, err)
	dead.path = filepath.Join(folder, "nothing") // it stays when its process is killed
	dead.Close()
	require.FileExists(t, filepath.Join(folder, "stats-dead.sock"))
	next, err := Listen(folder, "next", Source{}, nil)
	require.NoError(t, err)
	defer next.Close()
	list, err := Sockets(folder)
	require.NoError(t, err)
	require.Equal(t, []string{alive.Path(), next.Path()}, list)
}

// A new engine does not wake the engines of the host: no connection reaches their sockets.
func TestSweepWakesNobody(t *testing.T) {
	folder := t.TempDir()
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(s)
	path := filepath.Join(folder, prefix+"other"+suffix)
	require.NoError(t, unix.Bind(s, &unix.SockaddrUnix{Name: path}))
	sweep(folder)
	require.FileExists(t, path, "it is about to listen")
	require.NoError(t, unix.Listen(s, 1))
	sweep(folder)
	require.FileExists(t, path)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(s), Events: unix.POLLIN}}, 0)
	require.NoError(t, err)
	require.Zero(t, n)
}

func unset(string) string { return "" }

func TestFolderRefused(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(in("file"), nil, 0o600))
	require.ErrorContains(t, Folder(in("file")), "not a directory")
	require.NotContains(t, Folder(in("file")).Error(), "1777", "no command of ours helps")
	require.ErrorContains(t, Folder("/proc/no"), "on the host make it: mkdir -p -m 1777 /proc/no")
	require.NoError(t, os.Symlink(dir, in("link")))
	require.NoError(t, Folder(in("link")))
	require.NoError(t, os.Mkdir(in("open"), 0o700))
	require.NoError(t, os.Chmod(in("open"), 0o777))
	require.ErrorContains(t, Folder(in("open")), "every user may replace")
	require.NoError(t, unix.Chmod(in("open"), 0o1777))
	require.NoError(t, Folder(in("open")))
	require.ErrorIs(t, Folder(in("no/such")), os.ErrNotExist)
	require.ErrorContains(t, Folder(in("no/such")), "mkdir -p -m 1777 "+in("no/such"))
	denied := &FolderError{Path: "/run/gorail", Err: unix.EACCES, Do: "chmod 1777 /run/gorail"}
	require.EqualError(t, denied, fmt.Sprintf("folder /run/gorail: permission denied (user %d may not write to the folder: chmod 1777 /run/gorail, or chown it)", os.Geteuid()))
	require.NoError(t, Try(in("open")))
	left, err := os.ReadDir(in("open"))
	require.NoError(t, err)
	require.Empty(t, left)
	require.ErrorIs(t, Try(in("no/such")), os.ErrNotExist)
	require.Equal(t, [][]string{nil, {"/run/gorail"}, {"/a"}}, [][]string{FoldersOf("off", unset), FoldersOf("auto", unset), FoldersOf("/a", unset)})
	if os.Geteuid() == 0 {
		require.NoError(t, os.Mkdir(in("other"), 0o700))
		require.NoError(t, os.Chown(in("other"), 54321, 54321))
		require.ErrorContains(t, Folder(in("other")), "belongs to user 54321")
		require.ErrorContains(t, Folder(in("other/in")), "belongs to user 54321")
		require.NoError(t, os.Lchown(in("link"), 54321, 54321))
		require.ErrorContains(t, Folder(in("link")), "symbolic link of user 54321")
	}
	require.Equal(t, []string{"/run/user/7/gorail", "/run/gorail"}, Folders(func(string) string { return "/run/user/7" }))
	require.Equal(t, []string{"/run/gorail"}, Folders(unset))
}
