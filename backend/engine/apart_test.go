package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/rails"
	"gorail/backend/session"
	"gorail/backend/transfer"
)

// Devices of one subnet reach those of their own number alone. Bob lacks one, so that pairs by number are wrong. All devices that bob has are used without
// a failed transfer. A second engine of bob's host is reached over the right pairs at once.
func TestApart(t *testing.T) {
	t.Parallel()
	h := onVerbs(t, 4)
	h.lib.Set("apart", 1)
	h.params = []string{"ib_retry_count", "1", "rail_timeout", "200ms"}
	a := h.agent("ann")
	for i, name := range []string{"bob", "bill"} {
		p := &pair{a: a, b: h.agent(name, "devices", "!hca1")}
		loadBoth(p.a, p.b)
		p.mine, p.theirs = p.a.memory(16<<20), p.b.memory(16<<20).seenBy(p.a)
		var used []rails.Pair
		until(t, "all of bob's devices carry bytes", func() bool {
			x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs.fill(2))
			x.run("")
			defer x.release()
			p.same()
			used = nil
			for k, n := range x.shares() {
				if l := p.a.connected(name).links()[k]; n > 0 {
					used = append(used, rails.Pair{Own: l.Rail.Index, Peer: l.Peer})
				}
			}
			return len(used) == 3
		})
		require.ElementsMatch(t, []rails.Pair{{Own: 0, Peer: 0}, {Own: 2, Peer: 1}, {Own: 3, Peer: 2}}, used)
		if i == 1 {
			require.Equal(t, 3, len(p.a.connected(name).links()), "what is known is not tried again")
		}
	}
	require.Equal(t, 1, h.log.lines("agent=ann", "some rails do not reach each other"))
	require.Zero(t, h.log.count("transfer failed"))
}

// Links that did not connect are tried again when those that were used instead end: the network has changed. hca0 has a network of its own.
func TestApartTurned(t *testing.T) {
	t.Parallel()
	h := onVerbs(t, 3)
	h.lib.Set("apart", 2)
	h.params = []string{"ib_retry_count", "1", "rail_timeout", "200ms", "connect_timeout", "5s"}
	p := h.pair(1 << 20)
	x := p.a.whole(transfer.Write, p.mine, p.theirs)
	defer x.release()
	over := func(same bool) func() bool {
		return func() bool {
			x.post("") // it may fail meanwhile
			x.wait()
			n := 0
			for _, l := range p.a.connected("bob").links() {
				if l.Proved && l.Phase == session.Working && (l.Rail.Index == l.Peer) == same && l.Rail.Index > 0 {
					n++
				}
			}
			return n >= 2
		}
	}
	until(t, "pairs of different numbers work", over(false))
	until(t, "others are not tried any more", func() bool { return h.log.lines("agent=ann", "some rails do not reach each other") == 1 })
	h.lib.Set("apart", 1)
	until(t, "pairs of the same number work", over(true))
	p.mine.fill(7)
	x.run("")
	p.same()
}
