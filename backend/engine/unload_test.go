package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/status"
	"gorail/backend/transfer"
)

// NIXL's agent unloads a range that a prepared transfer uses. The transfer keeps the keys until the target deregisters the memory.
// Deregistration waits for the transfer. Later posts fail and write nothing, even if the range has been loaded again.
func TestUnloadedThenRevoked(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"gone": false, "loaded again": true} {
		t.Run(name, func(t *testing.T) {
			onFakes(t, func(h *harness) {
				p := h.pair(1<<20, "cancel_timeout", "10s")
				own := ownID(p)
				x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
				x.run()
				require.NoError(h, p.a.UnloadRemote(p.theirs.md.region))
				x.run() // the transfer keeps the keys
				if again {
					other := p.theirs.seenBy(p.a)
					y := p.a.whole(transfer.Write, p.mine.fill(2), other)
					y.run()
					y.release()
				}
				p.b.rail().Stall()
				x.post()
				p.a.connected("bob").inFlight(x)
				gone := make(chan error)
				go func() { gone <- p.b.Deregister(own) }()
				select {
				case err := <-gone:
					h.Error("Deregister did not wait for the transfer in flight: ", err)
				case <-time.After(50 * time.Millisecond):
				}
				p.b.rail().Release()
				if !h.Failed() {
					require.NoError(h, <-gone)
				}
				x.wait()
				before := string(p.theirs.b)
				p.mine.fill(3)
				if _, err := x.Post(); err == nil {
					x.fails(status.ErrBackend)
				}
				require.True(h, before == string(p.theirs.b))
			})
		})
	}
}
