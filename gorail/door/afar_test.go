package door

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestParams: nothing that names a file of this host passes, under any name of a backend.
func TestParams(t *testing.T) {
	for name, value := range map[string]string{"libfabric_path": "/tmp/evil.so", "log_file": "/etc/cron.d/x", "stats_file": "/etc/passwd", "stats_socket": "/tmp/x", "local_dir": "/tmp/x",
		"secret_file": "/etc/shadow", "tls_ca": "x", "engine_config": "LOG_FILE=/x", "nosuch": "x", "docs_dir_path": "/tmp"} {
		err := Params(map[string]string{"provider": "tcp", name: value})
		require.ErrorContains(t, err, "parameter "+name)
		require.ErrorContains(t, err, "refused from another host")
	}
	require.ErrorContains(t, Params(map[string]string{"log_file": "/x"}), "GORAIL_LOG_FILE in its environment")
	require.NoError(t, Params(map[string]string{"provider": "tcp", "devices": "lo", "num_workers": "3", "stats_socket": "off", "log_file": ""}))
}

func TestBackend(t *testing.T) {
	for _, name := range []string{"", "POSIX", "GDS", "OBJ", "../../tmp/x", "x/y", "GORAIL\x00"} {
		require.ErrorContains(t, Backend(name), "refused from another host")
	}
	require.NoError(t, Backend("GORAIL"))
	require.NoError(t, Backend("UCX"))
}
