package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// Eight initiators have one name, as nixlbench calls all of them. Each is served, and its notifications arrive in order.
func TestOneNameForMany(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		const initiators, rounds = 8, 20
		b := h.agent("bob")
		theirs := b.memory(initiators * 4096)
		var all []*agent
		for i := range initiators {
			a := h.agent("initiator")
			require.NoError(h, a.LoadConn("bob", b.Conn()))
			all = append(all, a)
			mine, seen := a.memory(4096).fill(uint64(i)), theirs.seenBy(a)
			for n := range rounds {
				x := a.prep(transfer.Write, []Desc{mine.desc(0, 4096)}, []Desc{seen.desc(i*4096, 4096)}, "bob")
				x.run(fmt.Sprintf("%d %02d", i, n))
				x.release()
			}
			require.Equal(h, string(mine.b), string(theirs.b[i*4096:(i+1)*4096]))
		}
		next := make([]int, initiators)
		until(h, "all notifications arrive", func() bool { return len(b.take()) >= initiators*rounds })
		for _, text := range b.got {
			var i, n int
			_, err := fmt.Sscanf(text, "initiator:%d %d", &i, &n)
			require.NoError(h, err)
			require.Equal(h, next[i], n, "order of the notifications of engine %d", i)
			next[i]++
		}
		require.EqualValues(h, initiators-1, b.snapshot().NameConflicts)
		require.Equal(h, 1, h.log.count("two engines use one agent name"))
		for _, a := range all {
			require.NoError(h, a.Close())
		}
	})
}

// An impostor under the name of a peer begins sessions, ends them and falls silent. No transfer of the peer notices.
func TestImpostorUnderAName(t *testing.T) {
	t.Parallel()
	h := onFake(t, placing())
	p := h.pair(1 << 20)
	p.a.whole(transfer.Write, p.mine, p.theirs).run()
	dialed := p.a.node.Stats().Dialed
	to, offers := p.b.conn(), h.offer(p.b, 1)
	for n := range 20 {
		x := p.a.whole(n%2, p.mine.fill(uint64(n)), p.theirs.fill(99)).post("mine")
		c := sayHelloAs("ann", to, strangerKey(n%3), uint64(1+n), offers)
		require.NotNil(t, c)
		if n >= 3 { // the first ones hang up at once
			f, err := wire.ReadFrame(c, 0)
			require.NoError(t, err)
			require.IsType(t, &wire.Welcome{}, f)
		}
		switch n % 3 {
		case 0:
			require.NoError(t, wire.WriteFrame(c, &wire.Bye{Text: "gone", Gone: true}))
		case 1:
			require.NoError(t, wire.WriteFrame(c, &wire.Drain{Next: 1000}))
		}
		require.Equal(t, done, x.wait())
		p.same()
		p.b.expect("ann:mine")
		x.release()
		c.Close()
	}
	require.Equal(t, dialed, p.a.node.Stats().Dialed, "the session stayed")
	require.Positive(t, p.b.snapshot().NameConflicts)
}
