package python

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/skip"
	"gorail/test/testenv"
)

// TestCalls: each call of NIXL that frameworks make (docs/frameworks.md), over tcp and shared memory. What GORAIL does
// not support has an exact error.
func TestCalls(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	if env.Backend != "GORAIL" {
		t.Skipf("the answers are not those of %s", env.Backend)
	}
	ways := []string{"tcp", "sm"}
	if testing.Short() {
		ways = ways[:1]
	}
	for _, way := range ways {
		for _, call := range []string{"make_prepped_xfer", "strided", "serialized_descs", "query_memory", "get_xfer_telemetry",
			"get_partial_agent_metadata", "remove_remote_agent", "prep_mem_view", "no_etcd", "dead_etcd", "listener", "make_connection",
			"sync_mode"} {
			t.Run(way+"/"+call, func(t *testing.T) {
				t.Parallel()
				out, err := run(t, env, time.Minute, []string{"GORAIL_PROVIDER=" + way}, env.Python, "calls.py", env.Backend, call)
				require.NoError(t, err, out)
				require.Contains(t, out, "\nok\n")
				require.NotContains(t, out, "skip: ", "the wheel here is the newest, and has all calls")
			})
		}
	}
}

// TestExamples: each example moves and verifies its bytes, over tcp and shared memory, and with the wheel's UCX.
func TestExamples(t *testing.T) {
	env := testenv.Need(t)
	skip.OrFail(t, env.CheckPython())
	for file, args := range map[string][]string{
		"two_agents.py": {"--mib", "4", "--rounds", "2"},
		"kv_blocks.py":  {"--requests", "20"},
		"weights.py":    {"--versions", "4", "--mib", "4"},
	} {
		for name, way := range map[string]string{"tcp": "GORAIL", "sm": "GORAIL", "ucx": "UCX"} {
			if testing.Short() && way == "UCX" {
				continue
			}
			t.Run(file+"/"+name, func(t *testing.T) {
				t.Parallel()
				setenv := []string{"NIXL_PLUGIN_DIR=" + env.PluginDirOf(way)}
				if way == "GORAIL" {
					setenv = append(setenv, "GORAIL_PROVIDER="+name)
				}
				program := filepath.Join(testenv.Root(), "examples", file)
				out, err := run(t, env, time.Minute, setenv, env.Python, append([]string{program, "--backend", way}, args...)...)
				require.Contains(t, out, "verified\n", err)
				if way == "GORAIL" { // stock UCX crashes in a destructor of the wheel's libnl after all work is done
					require.NoError(t, err, out)
				}
			})
		}
	}
}
