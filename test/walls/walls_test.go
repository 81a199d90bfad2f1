package walls_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/skip"
	"gorail/test/walls"
)

// envTell makes this program print what it sees.
const envTell = "GORAIL_TEST_TELL"

func TestMain(m *testing.M) {
	walls.MaybeEnter()
	if dir := os.Getenv(envTell); dir != "" {
		tell(dir)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// tell prints a process's numbers, its namespaces, its capabilities, and what it can do with a folder.
func tell(dir string) {
	name, _ := os.Hostname()
	fmt.Println("pid", os.Getpid(), "uid", os.Getuid(), "name", name)
	for _, ns := range []string{"pid", "mnt", "ipc", "uts", "cgroup", "user", "net"} {
		at, _ := os.Readlink("/proc/self/ns/" + ns)
		fmt.Println(at)
	}
	status, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(status), "\n") {
		if strings.HasPrefix(line, "CapEff:") {
			fmt.Println(strings.Join(strings.Fields(line), " "))
		}
	}
	tmp, _ := os.ReadDir("/tmp")
	shm, _ := os.ReadDir("/dev/shm")
	fmt.Println("files", len(tmp), len(shm))
	fmt.Println("write", os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
}

// inside runs tell in a container and returns what it printed.
func inside(t *testing.T, c walls.Container) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), c.Setenv(), envTell+"="+c.Mounts[0].At)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = c.Attr()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if u := c.Users; u != nil && u.Rootless {
			if err := walls.DropRoot(u.Root); err != nil {
				done <- err
				return
			}
		}
		done <- cmd.Run()
	}()
	require.NoError(t, <-done, "%s", out.String())
	return out.String()
}

// TestContainer: the process is number 1 in namespaces of its own, has the rights of a container that is not privileged, sees an
// empty /tmp and /dev/shm, and may write to a folder of the host as that folder's mode says.
func TestContainer(t *testing.T) {
	skip.UnlessRoot(t, "needs root to create namespaces")
	skip.OrFail(t, (&walls.Container{}).Possible())
	for _, c := range []struct {
		name     string
		c        walls.Container
		mode     os.FileMode
		readOnly bool
		uid      int
		cap      string
		write    string
	}{
		{"root", walls.Container{}, 0o755, false, 0, "00000000a80425fb", "<nil>"},
		{"read-only", walls.Container{}, 0o755, true, 0, "00000000a80425fb", "read-only file system"},
		{"user", walls.Container{UID: 54321}, 0o755, false, 54321, "0000000000000000", "permission denied"},
		{"user, sticky folder", walls.Container{UID: 54321}, 0o777 | os.ModeSticky, false, 54321, "0000000000000000", "<nil>"},
		{"root of a user namespace", walls.Container{Users: &walls.Users{Root: 54321}}, 0o777 | os.ModeSticky, false, 0, "00000000a80425fb", "<nil>"},
		{"rootless", walls.Container{Users: &walls.Users{Root: 54321, Rootless: true}}, 0o777 | os.ModeSticky, false, 0, "00000000a80425fb", "<nil>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
			require.NoError(t, os.Chmod(dir, c.mode))
			c.c.Name = "walls"
			c.c.Mounts = []walls.Mount{{Host: dir, At: "/run/shared", ReadOnly: c.readOnly}}
			got := inside(t, c.c)
			require.Contains(t, got, fmt.Sprintf("pid 1 uid %d name walls\n", c.uid))
			for _, ns := range []string{"pid", "mnt", "ipc", "uts", "cgroup", "user", "net"} {
				here, err := os.Readlink("/proc/self/ns/" + ns)
				require.NoError(t, err)
				shared := ns == "net" || ns == "user" && c.c.Users == nil
				require.Equal(t, shared, strings.Contains(got, here), "%s\n%s", ns, got)
			}
			require.Contains(t, got, "CapEff: "+c.cap)
			require.Contains(t, got, "files 0 0\n")
			require.Contains(t, got, "write")
			require.Contains(t, got, c.write)
		})
	}
}
