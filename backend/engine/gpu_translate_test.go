package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
)

// The driver does not end its translation of the kernels. Memory is registered and deregistered meanwhile, a transfer ends at its deadline, and
// the end of the engine does not wait for the driver.
func TestTranslatingEngineCloses(t *testing.T) {
	t.Parallel()
	h := onHost(t)
	g := h.withGPUs()
	g.lib.Leave()
	a, b := h.agent("ann", "xfer_timeout", "2s", "cancel_timeout", "500ms"), h.agent("bob", "cancel_timeout", "500ms")
	g.lib.Set("compiling", 1)
	t.Cleanup(func() { g.lib.Set("compiling", 0) })
	loadBoth(a, b)
	mine, theirs := g.block(a, 0, 64<<10), g.block(b, 1, 64<<10)
	x := a.whole2(transfer.Write, mine, theirs.seenBy(a)).post()
	require.NotEqual(t, done, x.wait())
	x.release()
	second := g.block(a, 0, 64<<10)
	require.NoError(t, a.Deregister(second.md.region))
	closeInTime(h, a, b)
	require.Zero(t, g.lib.Count("modules"))
	require.True(t, h.log.has("not freed at the end of the engine", "stays=\"rail sm/"), h.log)
}
