package e2e

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// TestFIPS: with GODEBUG=fips140 Go's runtime verifies the checksum of the library that it is linked into. It ends the
// process if the checksum is wrong. The plugin's checksum is right: the processes run and move bytes.
func TestFIPS(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"on", "only"} {
		t.Run(mode, func(t *testing.T) {
			env := ours(t)
			debug := "GODEBUG=fips140=" + mode
			if set := os.Getenv("GODEBUG"); set != "" {
				debug += "," + set
			}
			one := func(name string) *worker.Agent {
				return agent(process(t, worker.Options{Env: env, Setenv: []string{debug}}), env, name)
			}
			p := &pairOf{env: env, ini: one("alice"), tgt: one("bob")}
			p.tgt.Polling(true)
			const size = 3<<20 + 77
			a, b := p.buffers(size)
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				a.Fill(seedA)
				b.Fill(seedB)
				p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("moved")}).Do(limit)
				require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
				moved := uint64(seedA)
				if op == nixlapi.Read {
					moved = seedB
				}
				a.Want(moved)
				b.Want(moved)
			})
		})
	}
}
