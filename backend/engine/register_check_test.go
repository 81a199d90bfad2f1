package engine

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/transfer"
)

// Ranges that can't be memory are refused with a reason, and no region is left. The error speaks of the agent's empty list if the
// engine has no other memory of that type.
func TestRegisterImpossible(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a := h.agent("ann")
	const advice = "NIXL's agent now has an empty list of "
	for range 2 {
		for _, c := range []struct {
			addr, length uint64
			mem          int32
			why          string
		}{
			{0, 1, region.DRAM, "register DRAM 0x0+1: there is no memory at address 0"},
			{0, math.MaxUint64, region.DRAM, "there is no memory at address 0"},
			{0, 4096, region.VRAM, "register VRAM 0x0+4096: there is no memory at address 0"},
			{math.MaxUint64 - 4095, 8192, region.DRAM, "register DRAM 0xfffffffffffff000+8192: the range runs past the end"},
			{math.MaxUint64 - 4095, 4096, region.DRAM, "the range runs past the end"},
			{0, 4096, 4, "register FILE memory 0x0+4096: GORAIL moves DRAM and VRAM alone"},
			{1 << 40, 4096, 4, "register FILE memory"},
			{1 << 40, 4096, 2, "register BLK memory"},
			{1 << 40, 0, 3, "register OBJ memory"},
			{1 << 40, 4096, 5, "register type 5 memory"},
			{1 << 40, 4096, -1, "register type -1 memory"},
		} {
			id, err := a.Register(c.addr, c.length, 0, c.mem, nil)
			require.Equal(t, status.ErrInvalidParam, status.Of(err), c.why)
			require.ErrorContains(t, err, c.why)
			require.Zero(t, id)
			if c.mem == region.DRAM && len(a.regions.All()) > 0 {
				require.NotContains(t, err.Error(), advice)
			} else {
				require.ErrorContains(t, err, advice+region.MemName(c.mem))
			}
		}
		if len(a.regions.All()) == 0 {
			require.Zero(t, a.regions.Regions.Len())
			a.memory(4096)
		}
	}
	require.Len(t, a.regions.All(), 1)
	for _, addr := range []uint64{0, 1 << 40} { // a region without bytes can have any address
		id, err := a.Register(addr, 0, 0, region.DRAM, nil)
		require.NoError(t, err)
		require.NoError(t, a.Deregister(id))
	}
}

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
