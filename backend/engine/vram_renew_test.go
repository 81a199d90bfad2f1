package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/region"
	"gorail/backend/wire"
	"gorail/test/cuda"
)

// Memory of another GPU is mapped at registered addresses, and cannot be registered there. It is tried once. Copies of it cause few looks.
// Memory of the right GPU is direct again.
func TestVRAMOfAnotherGPU(t *testing.T) {
	t.Parallel()
	const handles, size = 2, 2 * cuda.Granule
	h := onGPUDevices(t, 2)
	a, b := h.agent("ann"), h.agent("bob")
	loadBoth(a, b)
	mine, theirs := h.gpu(a, 0, size, handles), h.gpu(b, 0, size, handles)
	h.moves(a, b, mine, theirs)
	h.app.UnmapVMM(0, handles, cuda.Granule, theirs.at)
	h.app.MapVMM(1, handles, cuda.Granule, theirs.at)
	r := b.regions.Regions.Get(theirs.md.region)
	copied := func() { // only a copy registers memory again
		b.regions.Recheck()
		held, err := b.regions.HoldForCopy([]wire.Claim{r.Claim}, access.Read)
		require.NoError(t, err)
		b.regions.Copied(held)
	}
	for start := time.Now(); time.Since(start) < 4*region.Settled; {
		copied()
	}
	said := func() int { return strings.Count(h.log.String(), "cannot be registered: transfers of it") }
	until(t, "the log says it", func() bool { copied(); return said() > 0 })
	for range 10 {
		copied()
	}
	require.Equal(t, 1, said(), "%s", h.log)
	require.LessOrEqual(t, h.log.count("GPU memory was unmapped or replaced"), 1)

	h.app.UnmapVMM(1, handles, cuda.Granule, theirs.at) // the addresses sleep, and copies ask for looks
	until(t, "a look finds it", func() bool { b.regions.Recheck(); return b.regions.Refused(r.ID) == nil && r.Rails.Load() == 0 })
	asked, start := h.cuda.Count("asked"), time.Now()
	for time.Since(start) < 6*region.Settled {
		held, err := b.regions.HoldForCopy([]wire.Claim{r.Claim}, access.Read)
		require.NoError(t, err)
		b.regions.Copied(held)
		time.Sleep(20 * time.Microsecond)
	}
	looks := 2 + int(time.Since(start)/restLeast)
	require.LessOrEqual(t, h.cuda.Count("asked")-asked, (looks+2)*2*handles, "of two agents with one piece each")
	h.app.MapVMM(0, handles, cuda.Granule, theirs.at)
	until(t, "it is registered again", func() bool { copied(); return r.Rails.Load() != 0 })
	h.moves(a, b, mine, theirs)
}
