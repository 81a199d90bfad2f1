package procstat_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/internal/procstat"
)

// TestSelf: the figures are positive, and one more descriptor is counted.
func TestSelf(t *testing.T) {
	u, err := procstat.Self()
	require.NoError(t, err)
	require.Positive(t, u.RSSKiB)
	require.Positive(t, u.Threads)
	require.NotEmpty(t, u.SigCgt)
	require.Positive(t, procstat.CPUTime())

	before, err := procstat.FDs()
	require.NoError(t, err)
	f, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer f.Close()
	after, err := procstat.FDs()
	require.NoError(t, err)
	more := slices.DeleteFunc(after, func(name string) bool { return slices.Contains(before, name) })
	require.Len(t, more, 1)
}

// TestOther: what the kernel says of a process from outside is what the process says of itself.
func TestOther(t *testing.T) {
	pid := os.Getpid()
	began, err := procstat.Of(pid)
	require.NoError(t, err)
	for spent := procstat.CPUTime(); procstat.CPUTime()-spent < 20*time.Millisecond; {
		continue
	}
	now, err := procstat.Of(pid)
	require.NoError(t, err)
	require.Greater(t, now-began, 10*time.Millisecond)

	lines, err := procstat.Resident(pid)
	require.NoError(t, err)
	require.Contains(t, strings.Join(lines, "\n"), "RssAnon: ")

	before, err := procstat.Descriptors(pid)
	require.NoError(t, err)
	f, err := os.Open("/dev/zero")
	require.NoError(t, err)
	defer f.Close()
	after, err := procstat.Descriptors(pid)
	require.NoError(t, err)
	require.Equal(t, before["/dev/zero"]+1, after["/dev/zero"])

	_, err = procstat.Of(-1)
	require.Error(t, err)
	_, err = procstat.Resident(-1)
	require.Error(t, err)
	_, err = procstat.Descriptors(-1)
	require.Error(t, err)
}
