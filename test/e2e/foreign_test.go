package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// TestForeignPeer: an agent with GORAIL in place of UCX loads the metadata of an agent with the wheel's UCX. The load
// fails, and the log names the peer.
func TestForeignPeer(t *testing.T) {
	t.Parallel()
	env := ours(t)
	plugins, err := env.PluginFolder(t.TempDir(), "UCX")
	require.NoError(t, err)
	env.Backend = "UCX"
	as := func(name, plugins string) *worker.Agent {
		env := env
		env.PluginDir = plugins
		return agent(process(t, worker.Options{Env: env}), env, name)
	}
	alice, bob := as("alice", plugins), as("bob", nixlapi.PluginDir(env.WheelDir))
	alice.Buffer(1<<20, seedA)
	bob.Buffer(1<<20, seedB)
	_, err = alice.Load(bob.Metadata())
	require.Error(t, err)
	says(t, alice.Worker, "level=ERROR", `agent "bob": the peer's backend under this name is not GORAIL: it must be on both sides`)
	works(t, alice.Worker, env)
}
