package engine

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/status"
	"gorail/backend/transfer"
)

// failAt makes the n-th work request on the agent's rail fail. On an ordered fabric the failure breaks the endpoint.
func (h *harness) failAt(a *agent, n int) {
	a.rail().Script(fake.Script{FailAt: uint64(n), FailErrno: syscall.EIO, FailBreaks: h.caps.Ordered})
}

// The n-th work request of a transfer fails. It carries data or a fragment of the notification. The link is fenced, and
// unproved work requests are posted again. The application gets its bytes, and the notification once.
func TestReplay(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(1 << 20) // 8 chunks
		var all []*request
		for op := range 2 {
			all = append(all, p.a.whole(op, p.mine, p.theirs))
		}
		text := string(body(9000, 1)) // 5 fragments
		for i, x := range all {
			for n := 1; n <= 14; n++ {
				p.mine.fill(uint64(n))
				p.theirs.fill(uint64(n + 100))
				h.failAt(p.a, n)
				x.post(text)
				s := inProg
				until(h, fmt.Sprintf("work request %d: the transfer ends and its notification arrives", n), func() bool {
					s = x.check()
					return s != inProg && len(p.b.take()) > 0
				})
				require.Equal(h, done, s)
				require.True(h, len(p.b.got) == 1 && p.b.got[0] == "ann:"+text)
				p.b.got = nil
				p.same()
			}
			require.True(h, h.log.has("fencing a link", "bob", "completion error"), i)
		}
		h.failAt(p.a, 0)
		p.b.quiet()
		require.EqualValues(h, 28, p.b.core.Counters()["notifs_received"])
		require.Positive(h, p.a.core.Counters()["replayed_batches"])
		require.Positive(h, p.a.core.Counters()["replayed_parts"], "the old name")
	})
}

// The peer's credits are lost. Notifications go on.
func TestReplayCredits(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(4096)
		for round := range 6 {
			h.failAt(p.b, 1)
			var want []string
			for i := range 100 {
				text := fmt.Sprint(round, ".", i)
				require.NoError(h, p.a.Notify("bob", []byte(text)))
				want = append(want, "ann:"+text)
			}
			p.b.expect(want...)
		}
	})
}

// All work requests fail. The transfer fails after a few attempts, and the log has the reason. The next transfer works.
func TestRepeatedErrors(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(1 << 20)
		x, y := p.a.whole(transfer.Write, p.mine, p.theirs), p.a.whole(transfer.Read, p.mine, p.theirs)
		p.a.connected("bob") // else the connection would fail
		for i, z := range []*request{x, y, x} {
			p.a.rail().Down(syscall.EIO)
			z.post("n").fails(status.ErrBackend)
			p.a.rail().Up()
			require.True(h, h.log.has("transfer failed", "bob", "input/output error", "bytes_left=1048576"), h.log)
			p.mine.fill(uint64(i))
			z.run("m")
			p.b.expect("ann:m")
			p.same()
		}
	})
}

// The only rail goes down and comes back. Transfers posted before fail. Transfers posted later succeed.
func TestLinkLoss(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(4 << 20)
		for i, end := range []*agent{p.a, p.b} {
			p.a.connected("bob")
			p.b.rail().Stall()
			x := p.a.whole(transfer.Write, p.mine.fill(uint64(i)), p.theirs).post("x")
			end.rail().Down(syscall.ENETDOWN)
			p.b.rail().Release()
			x.fails(status.ErrBackend)
			require.True(h, h.log.has("transfer failed", "bob", "network is down"), h.log)
			require.NoError(h, p.a.Notify("bob", []byte("waits")))
			end.rail().Up()
			p.b.expect("ann:waits")
			x.run("y")
			p.b.expect("ann:y")
			p.same()
		}
	})
}

// Execution and completion in random order, with delays and refused posts.
func TestUnordered(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.EFACaps())
	p := h.pair(512 << 10)
	x, y := p.a.whole(transfer.Write, p.mine, p.theirs), p.a.whole(transfer.Read, p.mine, p.theirs)
	for seed := range uint64(50) {
		p.a.rail().Script(fake.Script{ReorderSeed: seed + 1, Delay: int(seed % 3), PerPoll: int(seed % 4), EagainEvery: int(seed%5) * 3})
		p.b.rail().Script(fake.Script{ReorderSeed: seed + 99})
		var want []string
		for i := range 40 {
			text := fmt.Sprint(seed, ".", i, string(body(int(seed)*100*i%5000, i)))
			require.NoError(t, p.a.Notify("bob", []byte(text)))
			want = append(want, "ann:"+text)
		}
		p.b.expect(want...)
		for i, z := range []*request{x, y} {
			p.mine.fill(seed)
			p.theirs.fill(seed + uint64(i))
			text := string(body(int(seed)*300, i))
			z.post(text)
			p.b.expect("ann:" + text)
			if i == 0 { // the notification proves the data
				p.same()
			}
			require.Equal(t, done, z.wait())
			p.same()
		}
	}
}
