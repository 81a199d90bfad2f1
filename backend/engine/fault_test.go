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

// failAt makes the n-th operation of the agent's rail fail, as its kind of fabric would.
func (h *harness) failAt(a *agent, n int) {
	a.rail().Script(fake.Script{FailAt: uint64(n), FailErrno: syscall.EIO, FailBreaks: h.caps.Ordered})
}

// The n-th operation of a transfer fails, be it data or a fragment of its notification: the link is fenced, what was not
// proved is sent again, and the application sees nothing but its bytes and one notification.
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
				until(h, fmt.Sprintf("operation %d: transfer and notification", n), func() bool {
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
		require.Positive(h, p.a.core.Counters()["replayed_parts"])
	})
}

// Several transfers and notifications are under way when an operation fails.
func TestReplayBusy(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(1 << 20)
		const n = 8
		part := len(p.mine.b) / n
		var all []*request
		for i := range n {
			all = append(all, p.a.prep(transfer.Write, []Desc{p.mine.desc(i*part, part)}, []Desc{p.theirs.desc(i*part, part)}, "bob"))
		}
		var alone []string
		for round := range 25 {
			p.mine.fill(uint64(round))
			h.failAt(p.a, 1+round*2)
			if round%5 == 4 {
				h.failAt(p.b, 1+round/5) // what the target sends are credits
			}
			var want []string
			for i, x := range all {
				x.post(fmt.Sprint(round, ".", i))
				want = append(want, fmt.Sprint("ann:", round, ".", i))
				text := fmt.Sprint("alone ", round, ".", i)
				require.NoError(h, p.a.Notify("bob", []byte(text)))
				want = append(want, "ann:"+text)
				alone = append(alone, "ann:"+text)
			}
			until(h, "notifications", func() bool { return len(p.b.take()) >= len(want) })
			require.ElementsMatch(h, want, p.b.got)
			i := 0
			for _, s := range p.b.got {
				if i < len(alone) && s == alone[i] {
					i++
				}
			}
			require.Equal(h, len(alone), i, "those of no transfer keep their order")
			p.b.got, alone = nil, nil
			for _, x := range all {
				require.Equal(h, done, x.wait())
			}
			p.same()
		}
		p.b.quiet()
	})
}

// The peer's credits fail to arrive: notifications must not stop for good.
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

// Errors that do not end: the transfer is given up after a few attempts, with the reason, and the engine goes on.
func TestRepeatedErrors(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(1 << 20)
		x, y := p.a.whole(transfer.Write, p.mine, p.theirs), p.a.whole(transfer.Read, p.mine, p.theirs)
		p.a.connected("bob") // else it is connecting that fails
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

// A limit of the process that libfabric runs into: the reason says which.
func TestLimitWhilePosting(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(4096)
		p.a.connected("bob")
		p.a.rail().Down(syscall.EMFILE)
		p.a.whole(transfer.Write, p.mine, p.theirs).post("").fails(status.ErrBackend)
		require.True(h, h.log.has("transfer failed", "too many open files", "ulimit -n"), h.log)
		p.a.rail().Up()
	})
}

// The link is away for a while: what was posted ends in an error, what is posted when it is back arrives.
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

// The provider refuses every n-th post.
func TestEAGAIN(t *testing.T) {
	t.Parallel()
	onFakes(t, func(h *harness) {
		p := h.pair(1 << 20)
		for every := 2; every <= 4; every++ {
			p.a.rail().Script(fake.Script{EagainEvery: every})
			p.b.rail().Script(fake.Script{EagainEvery: every})
			for op := range 2 {
				p.mine.fill(uint64(every))
				text := string(body(50_000, every))
				x := p.a.whole(op, p.mine, p.theirs)
				x.run(text)
				p.b.expect("ann:" + text)
				p.same()
			}
		}
		require.Positive(h, p.a.core.Counters()["eagain"])
		require.Positive(h, p.a.rail().Counters().EAGAIN)
	})
}

// All chance there is: random order of execution and completion, delays, refusals.
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
