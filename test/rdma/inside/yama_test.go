package inside

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// TestYama: if Yama's scope forbids CMA, transfers use the ring, and a line names the scope. With scope 1 the option ptracer permits
// CMA.
func TestYama(t *testing.T) {
	scope := os.Getenv("GORAIL_YAMA")
	if scope == "" {
		t.Skip("needs GORAIL_YAMA with the number of Yama's scope")
	}
	for _, ptracer := range []string{"off", "on"} {
		t.Run("ptracer="+ptracer, func(t *testing.T) {
			agent := func(name string) *worker.Agent {
				env := testenv.Need(t)
				w := worker.Start(t, worker.Options{Env: env, Setenv: []string{"GORAIL_PROVIDER=sm,tcp", "GORAIL_LOG=info", "GORAIL_PTRACER=" + ptracer}})
				return w.Agent(worker.AgentConfig{Name: name, Backend: env.Backend, ProgThread: true})
			}
			alice, bob := agent("alice"), agent("bob")
			bob.Polling(true)
			a, b := alice.Buffer(1<<20, seedA), bob.Buffer(1<<20, seedB)
			alice.Learn(bob)
			alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")}).Do(limit)
			b.Want(seedA)
			require.Len(t, bob.WaitNotifs(1, limit), 1)
			says(t, alice, "peer connected", "rails=sm/memory", "session=initiator")
			if scope != "0" && !(scope == "1" && ptracer == "on") {
				says(t, alice, "level=INFO", "peer of this host", "ring, mapped", "Yama's scope is "+scope)
			}
		})
	}
}
