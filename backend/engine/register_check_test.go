package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
)

// A region may have no bytes. A transfer over it succeeds, with its notification. Other operations of the same transfer succeed,
// too.
func TestRegisterNoBytes(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(4096)
		here, there := &memory{owner: p.a, b: p.mine.b[:0]}, &memory{owner: p.b, b: p.theirs.b[:0]}
		here.register()
		there.register()
		far := there.seenBy(p.a)
		for i, x := range []*request{
			p.a.prep(transfer.Write, []Desc{here.desc(0, 0)}, []Desc{far.desc(0, 0)}, "bob"),
			p.a.prep(transfer.Read, []Desc{p.mine.desc(0, 0)}, []Desc{far.desc(0, 0)}, "bob"),
			p.a.prep(transfer.Write, []Desc{p.mine.desc(0, 4096), here.desc(0, 0)}, []Desc{p.theirs.desc(0, 4096), far.desc(0, 0)}, "bob"),
		} {
			p.mine.fill(uint64(i))
			text := fmt.Sprint("empty ", i)
			x.run(text)
			p.b.expect("ann:" + text)
			x.release()
		}
		p.same()
		require.False(t, h.log.has("could not register"))
		require.NoError(t, p.b.Deregister(there.md.region))
	})
}
