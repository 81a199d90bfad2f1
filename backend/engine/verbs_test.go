package engine

import (
	"fmt"
	"maps"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	imitation "gorail/test/verbs"
)

// asked returns the counters of the imitated library since Zero.
func asked(lib *imitation.Lib) map[string]int {
	n := map[string]int{}
	for _, name := range []string{"writes", "empty_writes", "reads", "sends", "signaled", "inlined", "chains", "longest", "cqes"} {
		if c := lib.Count(name); c > 0 {
			n[name] = c
		}
	}
	return n
}

// every is n descriptors of size bytes, none of which merge.
func (p *pair) every(n, size int) (local, remote []Desc) {
	for i := range n {
		local = append(local, p.mine.desc(2*i*size, size))
		remote = append(remote, p.theirs.desc(2*i*size, size))
	}
	return local, remote
}

// A large transfer uses two rails, and its notification takes one of them. A READ after each WRITE proves that the WRITE is in
// place. A small transfer uses one rail. Its notification follows on the same rail, so no READ is needed.
func TestVerbsCountsTwoRails(t *testing.T) {
	t.Parallel()
	h := onVerbs(t, 2)
	p := h.pair(64<<20, "window_min", "4MiB", "window_max", "4MiB", "chunk_max", "1MiB")
	proved := func() bool {
		return h.lib.Count("reads") > 0 && h.lib.Count("writes")-h.lib.Count("empty_writes") == h.lib.Count("reads")
	}
	for n := 0; n == 0 || n < 1000 && !proved(); n++ { // until both rails work from the first WRITE on
		h.lib.Zero()
		p.a.whole(transfer.Write, p.mine, p.theirs).run("all")
		p.b.expect("ann:all")
	}
	n := asked(h.lib)
	require.Positive(t, n["reads"])
	require.Equal(t, n["writes"]-n["empty_writes"], n["reads"], "%v: each WRITE of 1 MiB has a READ as its proof", n)
	require.GreaterOrEqual(t, n["longest"], 2, "a WRITE and its proof are posted together")
	require.LessOrEqual(t, n["longest"], 32)
	h.lib.Zero()
	p.a.whole(transfer.Write, p.mine, p.theirs).run()
	require.Zero(t, h.lib.Count("reads"), "without a notification nothing overtakes the data")
	local, remote := p.every(1, 64<<10)
	x := p.a.prep(transfer.Write, local, remote, "bob")
	want, got := map[string]int{"writes": 1, "sends": 1, "inlined": 1, "chains": 1, "longest": 2, "signaled": 1, "cqes": 2}, map[string]int(nil)
	for n := 0; n < 20 && !maps.Equal(want, got); n++ { // the counters may include a message with credits, or a probe
		h.lib.Zero()
		x.run("small")
		p.b.expect("ann:small")
		got = asked(h.lib)
	}
	x.release()
	require.Equal(t, want, got)
}

// A device takes a part of a chain, breaks connections, or loses a completion event. Transfers end well, over new endpoints where
// the old ones broke.
func TestVerbsFaults(t *testing.T) {
	for name, fault := range map[string]struct{ before, after func(*imitation.Lib) }{
		"partial chain": {before: func(l *imitation.Lib) { l.Set("partial", 501) }},
		"all break":     {after: func(l *imitation.Lib) { l.Break() }},
		"lost event":    {before: func(l *imitation.Lib) { l.Set("lose_event", 1) }},
		"post fails":    {before: func(l *imitation.Lib) { l.Fail("post_send", 20, syscall.EIO) }},
	} {
		for _, async := range []int{0, 1} {
			t.Run(name, func(t *testing.T) {
				h := onVerbs(t, 1)
				h.lib.Set("async", async)
				p := h.pair(16 << 20)
				p.a.whole(transfer.Write, p.mine, p.theirs).run("first")
				p.b.expect("ann:first")
				for i, op := range []int{transfer.Write, transfer.Read} {
					p.mine.fill(uint64(i))
					p.theirs.fill(uint64(i))
					p.mine.b[5]++
					local, remote := p.every(1000, 8<<10)
					x := p.a.prep(op, local, remote, "bob")
					if fault.before != nil {
						fault.before(h.lib)
					}
					x.post("all")
					if fault.after != nil {
						fault.after(h.lib)
					}
					require.Equal(t, done, x.wait())
					if name == "partial chain" || name == "post fails" {
						require.Equal(t, i+1, h.lib.Count("refused"), "the fault has occurred")
					}
					p.b.expect("ann:all")
					p.same()
				}
			})
		}
	}
}

// A libibverbs provider may ignore IBV_SEND_INLINE and read the bytes later, by their key. It may report another limit of inline
// data than requested. Transfers and notifications do not depend on that.
func TestVerbsInline(t *testing.T) {
	t.Parallel()
	for _, c := range []map[string]int{{"ignore_inline": 1}, {"ignore_inline": 1, "delay": 3}, {"ignore_inline": 1, "async": 1}, {"report_inline": 8}, {"report_inline": 0},
		{"report_inline": 1 << 30, "ignore_inline": 1}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			h := onVerbs(t, 1)
			for set, to := range c {
				h.lib.Set(set, to)
			}
			exercise(h)
		})
	}
}
