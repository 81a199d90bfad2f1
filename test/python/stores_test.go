package python

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/skip"
	"gorail/test/testenv"
)

// programs of metadata stores: each in PATH, or where tools/unpacked.sh and tools/vllm/install.sh put it.
var storePrograms = map[string]string{"etcd": ".cache/etcd-server/usr/bin/etcd", "tcpstore": ".cache/vllm/bin/python"}

// TestStores: metadata by etcd and by torch's TCPStore, between processes. docs/frameworks.md says what the agent does in each case.
func TestStores(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	for kind, program := range storePrograms {
		t.Run(kind, func(t *testing.T) {
			path, err := exec.LookPath(kind)
			if err != nil {
				path, err = filepath.Abs(filepath.Join("../..", program))
				require.NoError(t, err)
				_, err = os.Stat(path)
			}
			if err != nil && kind == "tcpstore" {
				t.Skipf("no torch: make test-vllm installs it (%v)", err)
			}
			skip.OrFail(t, err)
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
