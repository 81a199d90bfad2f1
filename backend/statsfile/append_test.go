package statsfile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/test/skip"
)

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
