package statsfile

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/test/skip"
)

const other = 54321 // another user's id

// TestOthersLinks: root writes into a folder of another user. That user's symbolic and hard links, of the file or of a
// folder on the way, lead nowhere. Links of root do.
func TestOthersLinks(t *testing.T) {
	skip.UnlessRoot(t, "needs root to give files to another user")
	private := filepath.Join(t.TempDir(), "private")
	require.NoError(t, os.WriteFile(private, []byte("precious"), 0o600))
	folder := filepath.Join(t.TempDir(), "folder")
	require.NoError(t, os.Mkdir(folder, 0o755))
	require.NoError(t, os.Chown(folder, other, other))
	in := func(name string) string { return filepath.Join(folder, name) }
	require.NoError(t, os.Symlink(private, in("soft")))
	require.NoError(t, os.Symlink(filepath.Dir(private), in("on-the-way")))
	require.NoError(t, os.Symlink("soft", in("twice")))
	for _, name := range []string{"soft", "on-the-way"} {
		require.NoError(t, os.Lchown(in(name), other, other))
	}
	for _, name := range []string{"soft", "twice", "on-the-way/private", "on-the-way/new"} {
		_, err := Check(in(name))
		require.ErrorContains(t, err, "symbolic link of user 54321", name)
		require.ErrorContains(t, Write(in(name), []byte("x"), 30*time.Second), "symbolic link of user 54321", name)
	}
	require.NoError(t, os.WriteFile(in("file"), []byte("x"), 0o600))
	require.NoError(t, os.Chown(in("file"), other, other))
	require.NoError(t, Write(in("file"), []byte("counters"), 30*time.Second))
	require.NoError(t, os.Link(in("file"), in("hard")))
	require.ErrorContains(t, Write(in("hard"), []byte("x"), 30*time.Second), "hard links")
	require.NoError(t, os.Link(private, in("ours"))) // any user's link, without fs.protected_hardlinks
	require.ErrorContains(t, Write(in("ours"), []byte("x"), 30*time.Second), "hard links")
	_, err := Append(in("ours"))
	require.ErrorContains(t, err, "hard links")
	require.NoError(t, os.Link(private, private+"2")) // nobody else can make one there
	fd, err := Append(private + "2")
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	require.NoError(t, os.Remove(private+"2"))
	require.NoError(t, os.Remove(in("ours")))
	for name, want := range map[string]string{private: "precious", in("file"): "counters"} {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, want, string(b))
	}
	require.NoFileExists(t, filepath.Join(filepath.Dir(private), "new"))

	for _, name := range []string{"soft", "on-the-way"} {
		require.NoError(t, os.Lchown(in(name), 0, 0))
	}
	for i, name := range []string{"soft", "twice", "on-the-way/private"} {
		path, err := Check(in(name))
		require.NoError(t, err)
		data := []byte{'0' + byte(i)}
		require.NoError(t, Write(path, data, 30*time.Second))
		b, err := os.ReadFile(private)
		require.NoError(t, err)
		require.Equal(t, data, b)
	}
	require.NoError(t, os.Symlink("loop", in("loop")))
	require.Error(t, Write(in("loop"), []byte("x"), 30*time.Second))
}
