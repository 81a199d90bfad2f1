package bed

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestMain runs a guest if BED_TEST_GUEST is set. TestKilled starts and kills such a process.
func TestMain(m *testing.M) {
	if os.Getenv("BED_TEST_GUEST") != "" {
		_, err := Guest{Stdout: os.Stdout}.Run(Shell("echo up; sleep 600")...)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestCommand: words, folder, variables, both outputs and the status pass through unchanged.
func TestCommand(t *testing.T) {
	var seen bytes.Buffer
	g := Guest{Dir: "/usr", Env: []string{"ODD=it's \"$HOME\""}, Stdout: &seen}
	r := Run(t, g, "bash", "-c", `pwd; echo "$ODD" "$1"; echo oops >&2; exit 42`, "x", "two  words")
	require.Equal(t, 42, r.Status)
	require.Equal(t, "/usr\nit's \"$HOME\" two  words\n", r.Stdout)
	require.Equal(t, r.Stdout, seen.String())
	require.Equal(t, "oops\n", r.Stderr)
	require.Equal(t, 128+9, Run(t, Guest{}, "sh", "-c", "kill -9 $$").Status)
}

// TestOutput: megabytes of output arrive completely.
func TestOutput(t *testing.T) {
	r := Run(t, Guest{}, "seq", "300000")
	require.Zero(t, r.Status, r)
	require.Len(t, r.Stdout, 1988895)
	require.True(t, strings.HasSuffix(r.Stdout, "\n299999\n300000\n"))
}

// TestMappings: a process in the guest dies if it touches more scattered pages than the host's vm.max_map_count. The error names the
// sysctl.
func TestMappings(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/vm/max_map_count")
	require.NoError(t, err)
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	if most > 200_000 {
		t.Skip("vm.max_map_count is above 200000: ", most)
	}
	Need(t)
	touch := fmt.Sprintf("import mmap\nm = mmap.mmap(-1, %d * 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\nfor i in range(%d): m[i * 8192] = 1", most+100, most+100)
	r, err := Guest{}.Run("python3", "-c", touch)
	require.ErrorContains(t, err, "vm.max_map_count", r)
	require.Equal(t, 128+11, r.Status, r)
	_, err = Guest{}.Run("python3", "-c", strings.ReplaceAll(touch, fmt.Sprint(most+100), fmt.Sprint(most/2)))
	require.NoError(t, err)
}

// TestThrowAway: the guest reads the host's files. Its writes do not reach the host and are gone afterwards.
func TestThrowAway(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("host\n"), 0o600))
	before := shm(t)
	r := Run(t, Guest{}, Shell("cat "+file+"; echo guest >"+file+"; cat "+file+"; touch /root/new /etc/new "+dir+"/new; ip -br link")...)
	require.Zero(t, r.Status, r)
	require.True(t, strings.HasPrefix(r.Stdout, "host\nguest\n"), r)
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "host\n", string(got))
	require.NoFileExists(t, "/etc/new")
	require.NoFileExists(t, filepath.Join(dir, "new"))
	require.Equal(t, before, shm(t))
}

func shm(t *testing.T) (names []string) {
	entries, err := os.ReadDir("/dev/shm")
	require.NoError(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "bed") {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestLimits: a guest beyond its time limit is killed, and the error names the limit. Guest.Memory limits the guest's memory.
func TestLimits(t *testing.T) {
	Need(t)
	for limit := 2 * time.Second; ; limit *= 2 { // on a busy machine a guest may not start its command within two seconds
		r, err := Guest{Limit: limit}.Run(Shell("echo before; sleep 600")...)
		require.ErrorContains(t, err, "limit of "+limit.String())
		if r.Stdout == "before\n" {
			require.Less(t, r.Took, 10*time.Minute)
			break
		}
		require.Less(t, limit, time.Minute, r)
	}

	r := Run(t, Guest{Memory: 256}, "awk", "/MemTotal/ { print $2 }", "/proc/meminfo")
	kib, err := strconv.Atoi(strings.TrimSpace(r.Stdout))
	require.NoError(t, err, r)
	require.Less(t, kib, 256<<10)
	require.Greater(t, kib, 128<<10)
}

// TestKilled: when a test is killed, the processes of its guests end, too.
func TestKilled(t *testing.T) {
	Need(t)
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "BED_TEST_GUEST=1")
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	word := make([]byte, 3)
	_, err = out.Read(word)
	require.NoError(t, err)
	require.Equal(t, "up\n", string(word))
	family := descendants(c.Process.Pid)
	require.Greater(t, len(family), 2, "launch.sh, the kernel, its helpers")
	require.NoError(t, c.Process.Kill())
	_ = c.Wait()
	alive := func() (n int) {
		for _, pid := range family {
			if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(stat), ") Z ") {
				n++
			}
		}
		return n
	}
	for end := time.Now().Add(time.Minute); alive() > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	require.Zero(t, alive())
}

// descendants returns all descendants of a process.
func descendants(pid int) (all []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, l := range lists {
		b, _ := os.ReadFile(l)
		for _, w := range strings.Fields(string(b)) {
			child, _ := strconv.Atoi(w)
			all = append(all, child)
			all = append(all, descendants(child)...)
		}
	}
	return all
}

// TestRailBuffers: the descriptors of a rail's ends stay non-blocking in os.File.
func TestRailBuffers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for socket buffers beyond the limit")
	}
	a, b, err := rail()
	require.NoError(t, err)
	for _, f := range []*os.File{a, b} {
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.O_NONBLOCK)
		require.NoError(t, f.Close())
	}
}
