package python

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/skip"
	"gorail/test/testenv"
)

// TestStores: metadata by etcd and by torch's TCPStore, between processes. docs/frameworks.md says what the agent does in each case.
func TestStores(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	stores := map[string]func(t *testing.T) string{
		"etcd": func(t *testing.T) string { return skip.Unpacked(t, "etcd-server", "etcd") },
		"tcpstore": func(t *testing.T) string {
			path, err := filepath.Abs("../../.cache/vllm/bin/python")
			require.NoError(t, err)
			if _, err := os.Stat(path); err != nil {
				t.Skipf("no torch: make test-vllm installs it (%v)", err)
			}
			return path
		},
	}
	for kind, program := range stores {
		t.Run(kind, func(t *testing.T) {
			path := program(t)
			for _, scenario := range []string{"add_and_remove", "partial", "store_dies", "fetch_without_store", "stale"} {
				t.Run(scenario, func(t *testing.T) {
					t.Parallel()
					if testing.Short() && scenario != "stale" {
						t.Skip("long")
					}
					out, err := run(t, env, 5*time.Minute, []string{"STORE=" + path}, env.Python, "stores.py", env.Backend, kind, scenario)
					require.NoError(t, err, out)
					require.Contains(t, out, "\nok\n")
				})
			}
		})
	}
}
