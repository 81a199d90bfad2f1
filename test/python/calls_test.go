package python

import (
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
