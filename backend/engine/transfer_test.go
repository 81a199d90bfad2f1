package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
)

func TestScattered(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		const n, size = 3000, 1 << 20
		p := h.pair(size)
		rnd := rand.New(rand.NewPCG(1, 2))
		var local, remote []Desc
		want := make([]byte, size)
		p.mine.fill(1)
		for i, slot := range rnd.Perm(n) {
			length := rnd.IntN(size/n + 1) // 0 too
			from, to := i*(size/n), slot*(size/n)
			local = append(local, p.mine.desc(from, length))
			remote = append(remote, p.theirs.desc(to, length))
			copy(want[to:to+length], p.mine.b[from:])
		}
		p.a.prep(transfer.Write, local, remote, "bob").run("all")
		p.b.expect("ann:all")
		require.True(h, string(want) == string(p.theirs.b))
		clear(p.mine.b)
		p.a.prep(transfer.Read, local, remote, "bob").run()
		for i := range local {
			l, r := local[i], remote[i]
			require.True(h, string(p.mine.b[l.Addr-p.mine.addr():][:l.Len]) == string(p.theirs.b[r.Addr-p.theirs.addr():][:r.Len]), i)
		}
	})
}

// A transfer is posted again and again. Each post sends one notification, with the text and the bytes of that post.
func TestRepost(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(64 << 10)
		x := p.a.whole(transfer.Write, p.mine, p.theirs)
		for i := range 300 {
			p.mine.b[0], p.mine.b[len(p.mine.b)-1] = byte(i), byte(i>>1)
			text := string(rune('a' + i%26))
			x.run(text)
			p.b.expect("ann:" + text)
			require.Equal(h, [2]byte{byte(i), byte(i >> 1)}, [2]byte{p.theirs.b[0], p.theirs.b[len(p.theirs.b)-1]})
		}
		p.b.quiet()
		require.EqualValues(h, 300, p.b.core.Counters()["notifs_received"])
		c := p.a.core.Counters()
		require.EqualValues(h, 300, c["to_c_post"]+c["reposts"])
		require.LessOrEqual(h, c["to_c_post"], uint64(20), "the first posts go through Go, and some more when another rail has come up")
	})
}

// Several transfers in both directions at the same time.
func TestBothWays(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(1 << 20)
		back := p.mine.seenBy(p.b)
		own := &memory{owner: p.b, b: p.theirs.b}
		own.register()
		const n = 16
		part := len(p.mine.b) / n
		p.mine.fill(1)
		p.theirs.fill(2)
		var all []*request
		for i := range n {
			if i%2 == 0 {
				all = append(all, p.a.prep(transfer.Write, []Desc{p.mine.desc(i*part, part)}, []Desc{p.theirs.desc(i*part, part)}, "bob").post("w"))
			} else {
				all = append(all, p.b.prep(transfer.Write, []Desc{own.desc(i*part, part)}, []Desc{back.desc(i*part, part)}, "ann").post("w"))
			}
		}
		for _, x := range all {
			require.Equal(h, done, x.wait())
		}
		p.same()
		until(t, "all notifications arrive", func() bool { return len(p.a.take()) == n/2 && len(p.b.take()) == n/2 })
	})
}
