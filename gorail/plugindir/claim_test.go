package plugindir

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// TestMain lets the test binary make a folder as a process of its own.
func TestMain(m *testing.M) {
	if dir := os.Getenv("TEST_HOLD"); dir != "" {
		hold(dir)
		os.Exit(0)
	}
	args := os.Getenv("TEST_MAKE")
	if args == "" {
		os.Exit(m.Run())
	}
	a := strings.Split(args, "|")
	for i := range 20 {
		s := Spec{Dir: a[0], Plugin: a[1], Wheel: a[2]}
		if i%2 == 0 {
			s.As = []string{"UCX", a[3]}
		}
		if _, err := Make(s); err != nil {
			println(err.Error())
			os.Exit(1)
		}
	}
	os.Exit(0)
}

// TestManyAtOnce: 16 processes make one new folder, and each changes its names again and again. None fails, and what is
// left is what the last one made: no link of another, and no half of a change.
func TestManyAtOnce(t *testing.T) {
	site, plugin := imitation(t)
	dir := filepath.Join(t.TempDir(), "new")
	exe, err := os.Executable()
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			c := exec.Command(exe)
			c.Env = append(os.Environ(), "TEST_MAKE="+strings.Join([]string{dir, plugin, site, "N" + string(rune('A'+i))}, "|"))
			out, err := c.CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	alone := t.TempDir()
	_, err = Make(Spec{Dir: alone, Plugin: plugin, Wheel: site})
	require.NoError(t, err)
	require.Equal(t, tree(t, alone), tree(t, dir))
}

// TestLockIsHeld: a folder whose lock another process keeps is given up, and the error says so.
func TestLockIsHeld(t *testing.T) {
	defer func(before time.Duration) { lockWait = before }(lockWait)
	lockWait = 50 * time.Millisecond
	site, plugin := imitation(t)
	dir := t.TempDir()
	spec := Spec{Dir: dir, Plugin: plugin, Wheel: site}
	_, err := Make(spec)
	require.NoError(t, err)
	folder, err := host.TrustedFolder(dir)
	require.NoError(t, err)
	defer folder.Close()
	held, err := lock(folder, dir)
	require.NoError(t, err)
	_, err = Make(spec)
	require.ErrorContains(t, err, "has had the lock of "+dir)
	require.NoError(t, held.Close())
	_, err = Make(spec)
	require.NoError(t, err)
}

// hold locks what this user can open in a folder, until standard input ends.
func hold(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, path := range append([]string{dir}, names(dir, entries)...) {
		if fd, err := unix.Open(path, unix.O_RDONLY, 0); err == nil {
			_ = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
			_ = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK})
		}
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func names(dir string, entries []os.DirEntry) (list []string) {
	for _, e := range entries {
		list = append(list, filepath.Join(dir, e.Name()))
	}
	return list
}

// TestLocksOfOthers: a user who may only read a folder locks all that he can open there. Its owner changes it all the same.
func TestLocksOfOthers(t *testing.T) {
	skip.UnlessRoot(t, "needs root to become another user")
	defer func(before time.Duration) { lockWait = before }(lockWait)
	lockWait = 50 * time.Millisecond
	site, plugin := imitation(t)
	for name, mode := range map[string]os.FileMode{"his group may not": 0o755, "a group may": 0o775} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			require.NoError(t, os.Mkdir(dir, 0o755))
			require.NoError(t, os.Chmod(dir, mode))
			require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
			require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(dir)), 0o755))
			_, err := Make(Spec{Dir: dir, Plugin: plugin, Wheel: site})
			require.NoError(t, err)
			c := exec.Command("/proc/self/exe")
			c.Env = append(os.Environ(), "TEST_HOLD="+dir)
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
			in, err := c.StdinPipe()
			require.NoError(t, err)
			out, err := c.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, c.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "held\n", line)
			_, err = Make(Spec{Dir: dir, Plugin: plugin, Wheel: site, As: []string{"UCX"}})
			require.NoError(t, err)
			require.NoError(t, in.Close())
			require.NoError(t, c.Wait())
		})
	}
}

// TestReadOnlyFolder: a user who may not write into a folder may use it while it is as wanted.
func TestReadOnlyFolder(t *testing.T) {
	site, plugin := imitation(t)
	dir := t.TempDir()
	_, err := Make(Spec{Dir: dir, Plugin: plugin, Wheel: site})
	require.NoError(t, err)
	for _, path := range []string{dir + "/" + mark, dir + "/plugins", dir} {
		require.NoError(t, os.Chmod(path, 0o555))
	}
	t.Cleanup(func() { _ = os.Chmod(dir, 0o755); _ = os.Chmod(dir+"/plugins", 0o755) })
	if os.Geteuid() == 0 { // root may write everywhere: look with the eyes of another user, who may enter the parents
		for _, path := range []string{filepath.Dir(dir), filepath.Dir(site), filepath.Dir(filepath.Dir(plugin))} {
			require.NoError(t, os.Chmod(path, 0o755))
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		require.NoError(t, unix.Setfsuid(65534))
		defer func() { _ = unix.Setfsuid(0) }()
	}
	_, err = Make(Spec{Dir: dir, Plugin: plugin, Wheel: site})
	require.NoError(t, err)
	_, err = Make(Spec{Dir: dir, Plugin: plugin, Wheel: site, As: []string{"UCX"}})
	require.ErrorIs(t, err, os.ErrPermission)
}

// TestFoldersOfOthers: a folder that another user could change is refused, and so is a mark that leads elsewhere. No file behind it is
// written, and nothing is made.
func TestFoldersOfOthers(t *testing.T) {
	skip.UnlessRoot(t, "needs root to give files to another user")
	const other = 54321
	site, plugin := imitation(t)
	for name, build := range map[string]func(t *testing.T, top, secret string) (dir, want string){
		"its folder": func(t *testing.T, top, _ string) (string, string) {
			dir := filepath.Join(top, "d")
			require.NoError(t, os.Mkdir(dir, 0o755))
			require.NoError(t, os.Chown(dir, other, other))
			return dir, "belongs to user 54321"
		},
		"a folder above": func(t *testing.T, top, _ string) (string, string) {
			require.NoError(t, os.Chown(top, other, other))
			return filepath.Join(top, "new", "d"), "belongs to user 54321"
		},
		"a folder for everybody": func(t *testing.T, top, _ string) (string, string) {
			require.NoError(t, os.Chmod(top, 0o777))
			return filepath.Join(top, "d"), "every user may replace"
		},
		"a folder in which everybody may put files": func(t *testing.T, top, _ string) (string, string) {
			dir := filepath.Join(top, "d")
			require.NoError(t, os.Mkdir(dir, 0o755))
			require.NoError(t, unix.Chmod(dir, 0o1777))
			require.NoError(t, os.WriteFile(filepath.Join(dir, mark), nil, 0o644))
			return dir, "every user may put files into the folder"
		},
		"another's folder in place of plugins": func(t *testing.T, top, _ string) (string, string) {
			dir := filepath.Join(top, "d")
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "plugins"), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, mark), []byte("x"), 0o644))
			require.NoError(t, os.Chown(filepath.Join(dir, "plugins"), other, other))
			return dir, "belongs to user 54321"
		},
		"a link on the way": func(t *testing.T, top, _ string) (string, string) {
			require.NoError(t, unix.Chmod(top, 0o1777))
			require.NoError(t, os.Mkdir(filepath.Join(top, "d"), 0o755))
			require.NoError(t, os.Symlink("d", filepath.Join(top, "to")))
			require.NoError(t, os.Lchown(filepath.Join(top, "to"), other, other))
			return filepath.Join(top, "to"), "symbolic link of user 54321"
		},
		"a link in place of the mark": func(t *testing.T, top, secret string) (string, string) {
			require.NoError(t, os.Symlink(secret, filepath.Join(top, mark)))
			return top, "too many levels of symbolic links"
		},
		"a pipe in place of the mark": func(t *testing.T, top, _ string) (string, string) {
			require.NoError(t, unix.Mkfifo(filepath.Join(top, mark), 0o600))
			return top, "is no file"
		},
	} {
		t.Run(name, func(t *testing.T) {
			top, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
			require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
			dir, want := build(t, top, secret)
			before := tree(t, top)
			_, err := Make(Spec{Dir: dir, Plugin: plugin, Wheel: site})
			require.ErrorContains(t, err, want)
			require.Equal(t, before, tree(t, top))
			text, err := os.ReadFile(secret)
			require.NoError(t, err)
			require.Equal(t, "secret", string(text))
		})
	}
}

// TestPluginOfCurrentFolder: the plugin is taken from ./build unless that is another user's.
func TestPluginOfCurrentFolder(t *testing.T) {
	skip.UnlessRoot(t, "needs root to give files to another user")
	t.Setenv("GORAIL_PLUGIN_DIR", "")
	dir := t.TempDir()
	t.Chdir(dir)
	path := filepath.Join("build", prefix+own+".so")
	require.NoError(t, os.Mkdir("build", 0o755))
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	require.Equal(t, path, FindPlugin())
	require.NoError(t, os.Chown(dir, 54321, 54321))
	require.NotEqual(t, path, FindPlugin())
}
