package statsfile

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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

// TestTermProcess is the other process of TestOnTerm. It is told what to do with SIGTERM.
func TestTermProcess(t *testing.T) {
	path := os.Getenv("GORAIL_TEST_TERM")
	if path == "" {
		t.Skip("the other process of another test")
	}
	unhandled = func() bool { return true }
	stop := OnTerm(func() { _ = os.WriteFile(path, []byte("counters"), 0o600) })
	if strings.HasSuffix(path, "stopped") {
		stop()
	}
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	select {}
}

func TestOnTerm(t *testing.T) {
	dir := t.TempDir()
	for name, written := range map[string]bool{"running": true, "stopped": false} {
		path := filepath.Join(dir, name)
		c := exec.Command(os.Args[0], "-test.run=^TestTermProcess$")
		c.Env = append(os.Environ(), "GORAIL_TEST_TERM="+path)
		err := c.Run()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, syscall.SIGTERM, exit.Sys().(syscall.WaitStatus).Signal(), name)
		if written {
			require.FileExists(t, path)
		} else {
			require.NoFileExists(t, path)
		}
	}
}
