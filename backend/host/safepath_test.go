package host_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/host"
	"gorail/test/skip"
)

// row is a case of testdata/cases.json, which python/tests/test_safepath.py reads, too.
type row struct {
	Name string
	Make []string // "d NAME MODE USER", "f NAME MODE USER", "l NAME TO USER"
	Path string
	// parts of the errors; "": none
	Follow, Trusted string
}

func (r row) build(t *testing.T, dir string) {
	t.Helper()
	for _, line := range r.Make {
		w := strings.Fields(line)
		path := filepath.Join(dir, w[1])
		user, err := strconv.Atoi(w[3])
		require.NoError(t, err)
		mode, _ := strconv.ParseUint(w[2], 8, 32)
		switch w[0] {
		case "d":
			require.NoError(t, os.Mkdir(path, 0o700))
		case "f":
			require.NoError(t, os.WriteFile(path, nil, 0o600))
		case "l":
			require.NoError(t, os.Symlink(w[2], path))
		}
		if user != 0 {
			skip.UnlessRoot(t, "needs root to give files to another user")
			require.NoError(t, os.Lchown(path, user, user))
		}
		if w[0] != "l" {
			require.NoError(t, unix.Chmod(path, uint32(mode)))
		}
	}
}

func check(t *testing.T, want string, w *host.Walk, err error) {
	t.Helper()
	if want == "" {
		require.NoError(t, err)
		w.Close()
		return
	}
	require.ErrorContains(t, err, want)
}

// Each path is followed and trusted, or refused, as its case says.
func TestCases(t *testing.T) {
	text, err := os.ReadFile("testdata/cases.json")
	require.NoError(t, err)
	var rows []row
	require.NoError(t, json.Unmarshal(text, &rows))
	for _, r := range rows {
		t.Run(r.Name, func(t *testing.T) {
			dir := t.TempDir()
			r.build(t, dir)
			path := dir + "/" + r.Path
			w, _, err := host.Follow(path)
			check(t, r.Follow, w, err)
			w, _, err = host.Trusted(path)
			check(t, r.Trusted, w, err)
			if !strings.HasSuffix(path, "/x") {
				return
			}
			w, err = host.TrustedFolder(path)
			if r.Trusted == "" {
				require.ErrorIs(t, err, fs.ErrNotExist)
				require.NoError(t, os.Mkdir(path, 0o755))
				w, err = host.TrustedFolder(path)
			}
			check(t, r.Trusted, w, err)
		})
	}
}

// The owner of what is to be loaded is trusted, and nobody else.
func TestOwners(t *testing.T) {
	skip.UnlessRoot(t, "needs root to give files to other users")
	const owner = 54321
	dir := t.TempDir()
	for _, user := range []int{owner, owner + 1} {
		path := filepath.Join(dir, fmt.Sprint(user))
		require.NoError(t, os.MkdirAll(filepath.Join(path, "in"), 0o755))
		require.NoError(t, os.Chown(path, user, user))
	}
	also := host.Owners(filepath.Join(dir, fmt.Sprint(owner), "in", "file"))
	require.Equal(t, []uint32{owner}, also)
	w, err := host.TrustedFolder(filepath.Join(dir, fmt.Sprint(owner), "in"), also...)
	check(t, "", w, err)
	_, err = host.TrustedFolder(filepath.Join(dir, fmt.Sprint(owner+1), "in"), also...)
	require.ErrorContains(t, err, "belongs to user 54322")
}

// A path that does not begin with / is refused: the host may change its working directory.
func TestRelative(t *testing.T) {
	_, _, err := host.Follow("x/y")
	require.ErrorContains(t, err, "must begin with /")
	_, err = host.TrustedFolder("")
	require.Error(t, err)
}

// MakeFolder makes what is missing, and nothing behind another user's link.
func TestMakeFolder(t *testing.T) {
	dir := t.TempDir()
	w, err := host.MakeFolder(dir+"/a/../b/c", 0o750)
	check(t, "", w, err)
	for _, name := range []string{"a", "b/c"} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o750), info.Mode().Perm())
	}
	if os.Geteuid() != 0 {
		return
	}
	require.NoError(t, os.Symlink("b", filepath.Join(dir, "to")))
	require.NoError(t, os.Lchown(filepath.Join(dir, "to"), 54321, 54321))
	_, err = host.MakeFolder(dir+"/to/d", 0o755)
	require.ErrorContains(t, err, "symbolic link of user 54321")
	require.NoDirExists(t, filepath.Join(dir, "b/d"))
}

// A mounted volume may be open to everybody, as Kubernetes's emptyDir is: who mounts it decides who gets in. A folder in it may not.
func TestVolume(t *testing.T) {
	dir := t.TempDir()
	var mounts error // why there are none of the test's own
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread's mounts are its own
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=777")
		}
		if err != nil {
			mounts = err
			failed <- nil
			return
		}
		w, err := host.TrustedFolder(dir)
		if err != nil {
			failed <- err
			return
		}
		w.Close()
		open := filepath.Join(dir, "open")
		if err = errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o777)); err == nil {
			if _, err = host.TrustedFolder(open); err == nil {
				err = errors.New("an open folder of the volume is trusted")
			} else if strings.Contains(err.Error(), "every user may replace") {
				err = nil
			}
		}
		failed <- err
	}()
	require.NoError(t, <-failed)
	skip.OrFail(t, mounts)
}

// TestMain lets the test binary walk a path, or be an engine of a roster, as a process of its own.
func TestMain(m *testing.M) {
	if dir := os.Getenv("TEST_ROSTER"); dir != "" {
		rosterProcess(dir)
		os.Exit(0)
	}
	path := os.Getenv("TEST_WALK")
	if path == "" {
		os.Exit(m.Run())
	}
	w, err := host.TrustedFolder(path)
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
	w.Close()
	os.Exit(0)
}

// In a user namespace a folder's owner may have no number there. He may be root; in a folder where every user may make others he may be
// anybody, and is not trusted.
func TestUsersWithoutNumber(t *testing.T) {
	skip.UnlessRoot(t, "needs root to give files to another user")
	const other = 54321
	top := t.TempDir()
	require.NoError(t, os.Chmod(top, 0o755))
	for _, name := range []string{"plain", "sticky"} {
		require.NoError(t, os.MkdirAll(filepath.Join(top, name, "his"), 0o755))
		require.NoError(t, os.Chown(filepath.Join(top, name, "his"), other, other))
	}
	require.NoError(t, unix.Chmod(filepath.Join(top, "sticky"), 0o1777))
	walk := func(path string) (string, error) {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "TEST_WALK="+path)
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}}}
		out, err := c.CombinedOutput()
		return string(out), err
	}
	out, err := walk(filepath.Join(top, "plain", "his"))
	if err != nil && !strings.Contains(out, "belongs") {
		skip.OrFail(t, err)
	}
	require.NoError(t, err, out)
	out, err = walk(filepath.Join(top, "sticky", "his"))
	require.ErrorContains(t, err, "exit status 3")
	require.Contains(t, out, "belongs to user 65534")
}
