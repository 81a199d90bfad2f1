package option

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestPathOptionsAreMarked: an option whose name or allowed values speak of a file, a folder, a path or dlopen has the type path, and
// no other has it.
func TestPathOptionsAreMarked(t *testing.T) {
	names := regexp.MustCompile(`(_path|_file|_dir|_socket|_folder|_library|_ca|_cert|_key)$`)
	words := regexp.MustCompile(`(?i)\b(files?|folders?|paths?|dlopen|librar(y|ies)|sockets?)\b`)
	marked := 0
	for _, r := range table {
		like := words.MatchString(r.Range) || words.MatchString(r.sample()) || regexp.MustCompile(`^\.{0,2}/|\.so\b`).MatchString(r.sample()) ||
			names.MatchString(r.Name) && r.Name != "cxi_auth_key" // numbers
		require.Equal(t, like, r.Type == TypePath, "%s: mark it as %s in the table, so that tools refuse it from other hosts", r.Name, TypePath)
		if like {
			marked++
		}
	}
	require.GreaterOrEqual(t, marked, 12)
}

// TestNamesFile: values of marked options name files, unless they are the default or say that there is none.
func TestNamesFile(t *testing.T) {
	for name, value := range map[string]string{"libfabric_path": "/tmp/x.so", "log_file": "/etc/profile.d/x.sh", "stats_file": "x", "stats_socket": "/tmp", "local_dir": "/tmp",
		"secret_file": "/etc/shadow", "tls_ca": "x", "tls_key": "x", "tls_cert": "x", "cuda_path": "x.so", "ibverbs_path": "x.so", "libcrypto_path": "x.so"} {
		require.True(t, NamesFile(name, value), name)
		require.True(t, Known(name))
	}
	for name, value := range map[string]string{"provider": "tcp", "libfabric_path": "libfabric.so.1", "stats_socket": "off", "local_dir": "auto", "log_file": "", "nosuch": "/x"} {
		require.False(t, NamesFile(name, value), name)
	}
	require.True(t, Known("num_workers"))
	require.False(t, Known("nosuch"))
}

// TestLibrariesAreFiles: dlopen of a pipe without a writer never returns. What is not there is left to dlopen.
func TestLibrariesAreFiles(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "x.so")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	for _, name := range []string{"libfabric_path", "ibverbs_path", "cuda_path", "libcrypto_path"} {
		for _, bad := range []string{pipe, filepath.Dir(pipe), "/dev/zero"} {
			_, _, err := Parse(map[string]string{name: bad}, nil)
			require.ErrorContains(t, err, name)
			require.ErrorIs(t, err, errLibrary)
		}
		_, _, err := Parse(map[string]string{name: pipe + ".1"}, nil)
		require.NoError(t, err)
	}
}
