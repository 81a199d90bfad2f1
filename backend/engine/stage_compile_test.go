package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	"gorail/internal/pattern"
	"gorail/test/fake"
)

// TestStageCompiling: the driver does not end the translation of a kernel, at both sides or for a second GPU of this side. Transfers then end: with an
// error if it is the kernel that copies, in clear if it is those that pack. Once the driver has ended, they work.
func TestStageCompiling(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ packs, second bool }{"copies": {}, "packs": {packs: true}, "copies, second": {second: true}, "packs, second": {true, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := onFake(t, fake.TCPCaps())
			g := h.withPacking()
			g.lib.Set("devices", 3)
			defer g.lib.Set("compiling", 0)
			a, b := h.agent("a", "compression", "on"), h.agent("b", "compression", "on")
			loadBoth(a, b)
			const size = 1 << 20
			if !c.packs && !c.second { // before a GPU is used
				g.lib.Set("compiling", 1)
			}
			modules := 2
			mine, theirs := g.block(a, 0, size), g.block(b, 1, size)
			seen := theirs.seenBy(a)
			if c.second {
				x := a.whole2(transfer.Write, mine, seen).post()
				require.Equal(t, done, x.wait())
				x.release()
				modules = 5
				if !c.packs {
					g.lib.Set("compiling", 1)
				}
				mine = g.block(a, 2, size)
			}
			if c.packs {
				until(t, "the copy kernels are there", func() bool { return g.lib.Count("modules") == modules })
				g.lib.Set("compiling", 1)
			}
			for _, e := range []*agent{a, b} {
				e.staging.Copier.SetPatience(300 * time.Millisecond)
			}
			mine.numbers(1)
			theirs.numbers(2)
			before := a.snapshot().Staged.Packed
			for op := range 2 {
				x := a.whole2(op, mine, seen).post()
				require.Equal(t, c.packs, x.wait() == done)
				x.release()
			}
			require.Equal(t, before, a.snapshot().Staged.Packed)
			require.True(t, h.log.has("this GPU compresses nothing", "not yet translated"))
			g.lib.Set("compiling", 0)
			x := a.whole2(transfer.Write, mine, seen).post()
			require.Equal(t, done, x.wait())
			pattern.Same(t, mine.bytes(), theirs.bytes())
			x.release()
		})
	}
}
