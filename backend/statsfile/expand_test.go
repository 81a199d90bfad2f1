package statsfile

import (
	"fmt"
	"os"
	"path/filepath"
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
