package engine

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider/fake"
	"gorail/backend/status"
)

// New refuses a stats_file that Close could not write.
func TestStatsFileRefused(t *testing.T) {
	h := onFake(t, fake.TCPCaps())
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, unix.Mkfifo(in("fifo"), 0o600))
	require.NoError(t, os.Symlink(in("fifo"), in("link")))
	require.NoError(t, os.WriteFile(in("file"), nil, 0o600))
	l, err := net.Listen("unix", in("socket"))
	require.NoError(t, err)
	defer l.Close()
	null, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer null.Close()
	for path, why := range map[string]string{
		in("no/file"):                           "folder " + in("no") + ": no such file or directory",
		in("file/file"):                         "not a directory",
		dir:                                     "is a directory",
		in("fifo"):                              "is a named pipe",
		in("link"):                              "is a named pipe",
		in("socket"):                            "is neither a file nor a terminal",
		"/dev/fd/9999":                          "bad file descriptor",
		fmt.Sprint("/proc/self/fd/", null.Fd()): "open for reading only",
	} {
		opts, _, err := option.Parse(map[string]string{"stats_file": path}, nil)
		require.NoError(t, err)
		_, err = New(Config{Agent: "ann", Options: opts, Provider: h.fabric.Provider(), Log: slog.New(h.log)})
		require.ErrorContains(t, err, "option stats_file="+path)
		require.ErrorContains(t, err, why)
		require.Equal(t, status.ErrInvalidParam, status.Of(err))
	}
}
