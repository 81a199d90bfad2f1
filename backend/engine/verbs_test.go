package engine

import (
	"fmt"
	"maps"
	"regexp"
	"syscall"
	"testing"
	"time"

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

// An event takes a rail out of use during a transfer. The transfer ends well over the other rail. PORT_ACTIVE brings the rail
// back. An event of another port, and a change of GIDs or LID that leaves the rail's address, have no effect.
func TestVerbsEvents(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		event, port int
		down        bool
	}{
		"port error":      {imitation.PortErr, 1, true},
		"device is fatal": {imitation.DeviceFatal, 0, true},
		"queue error":     {imitation.CQErr, 0, true},
		"other port":      {imitation.PortErr, 2, false},
		"GID table":       {imitation.GIDChange, 1, false},
		"LID":             {imitation.LIDChange, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := onVerbs(t, 2)
			p := h.pair(16 << 20)
			p.a.whole(transfer.Write, p.mine, p.theirs).run("first")
			p.b.expect("ann:first")
			used := func() int { return h.log.count(`"rail in use" peer=bob rail=verbs/hca1`) }
			until(t, "hca1 is in use", func() bool { return used() > 0 })
			p.mine.b[7]++
			x := p.a.whole(transfer.Write, p.mine, p.theirs)
			x.post("second")
			before := used()
			h.lib.Event(1, c.event, c.port)
			require.Equal(t, done, x.wait())
			p.b.expect("ann:second")
			p.same()
			fenced := func() bool { return h.log.has("fencing a link", "hca1", "agent=ann") } // bob may see the event first, and fence
			if !c.down {
				x.run("third")
				p.b.expect("ann:third")
				require.False(t, fenced())
				return
			}
			until(t, "the link is fenced", fenced)
			// What ends queues may reach operations first, and then they are the reason.
			require.True(t, c.event != imitation.PortErr || h.log.has("fencing a link", "hca1", "the network device went down"))
			h.lib.Event(1, imitation.PortActive, 1)
			until(t, "hca1 is in use again", func() bool { return used() > before })
			x.run("third")
			p.b.expect("ann:third")
		})
	}
}

// No completion event comes. The progress threads of both sides wake after a while and poll.
func TestVerbsNoEvents(t *testing.T) {
	t.Parallel()
	h := onVerbs(t, 1)
	p := h.pair(1 << 20)
	x := p.a.whole(transfer.Write, p.mine, p.theirs)
	x.run("first")
	p.b.expect("ann:first")
	until(t, "both progress threads sleep", func() bool {
		polls := h.lib.Count("polls")
		time.Sleep(20 * time.Millisecond)
		return h.lib.Count("polls") == polls
	})
	h.lib.Set("mute", 1)
	wakes := h.lib.Count("lost")
	p.mine.b[9]++
	x.post("second")
	until(t, "bytes and messages arrive without a call", func() bool {
		s, err := p.b.Snapshot()
		require.NoError(t, err)
		return p.theirs.b[9] == p.mine.b[9] && s.Rails[0].MessagesReceived >= 2
	})
	require.Greater(t, h.lib.Count("lost"), wakes)
	require.Equal(t, done, x.wait())
	p.b.expect("ann:second")
	p.same()
}

// poll_cq fails once, and the transfer ends well. Then poll_cq fails for good, and the transfer fails in time.
func TestVerbsQueueFails(t *testing.T) {
	t.Parallel()
	h := onVerbs(t, 1)
	p := h.pair(4<<20, "xfer_timeout", "1s", "cancel_timeout", "200ms")
	x := p.a.whole(transfer.Write, p.mine, p.theirs)
	x.run("first")
	p.b.expect("ann:first")
	h.lib.Fail("poll_cq", 1, syscall.EIO)
	p.mine.b[5]++
	x.run("second")
	p.b.expect("ann:second")
	p.same()
	h.lib.MayOverrun = true
	h.lib.FailMany("poll_cq", 1, 1<<40, syscall.EIO)
	began := time.Now()
	x.post("third")
	require.NotEqual(t, done, x.wait())
	require.Less(t, time.Since(began), patience)
	h.lib.Fail("poll_cq", 0, 0)
}

// A request breaks its connection, and the kernel finds no neighbour for another one (ibv_modify_qp to RTR does not return). The transfer
// goes on over the other rail meanwhile, and the peers' control channel works: keys of other memory arrive. READ and WRITE. The rail is
// used again when the kernel has the neighbour.
func TestVerbsFenceWaitsForNoNeighbour(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]int{"WRITE": transfer.Write, "READ": transfer.Read} {
		t.Run(name, func(t *testing.T) {
			h := onVerbs(t, 2)
			p := h.pair(16 << 20)
			p.a.whole(op, p.mine, p.theirs).run("first")
			p.b.expect("ann:first")
			used := func() int { return h.log.count(`"rail in use" peer=bob`) }
			until(t, "both rails are in use", func() bool { return used() >= 2 })
			before := used()
			h.lib.Set("hold_rtr", 3)
			release := func() { h.lib.Set("hold_rtr", 0) }
			t.Cleanup(release)
			h.lib.Set("break_wr", 5)
			p.mine.b[7]++
			p.theirs.b[9]++
			p.a.whole(op, p.mine, p.theirs).run("second")
			p.b.expect("ann:second")
			p.same()
			until(t, "another endpoint is being connected", func() bool { return h.lib.Count("held") > 0 })
			mine, theirs := p.a.memory(1<<20), p.b.memory(1<<20).seenBy(p.a)
			p.a.whole(op, mine, theirs).run("third")
			p.b.expect("ann:third")
			require.Positive(t, h.lib.Count("held"))
			require.Equal(t, before, used())
			release()
			until(t, "the rail is in use again", func() bool { return used() > before })
		})
	}
}

// ibv_destroy_qp does not return at either end of a broken connection. The transfer goes on over the other rail all the same.
func TestVerbsFenceWaitsForNoDestroy(t *testing.T) {
	t.Parallel()
	h := onVerbs(t, 2)
	p := h.pair(16 << 20)
	p.a.whole(transfer.Read, p.mine, p.theirs).run("first")
	p.b.expect("ann:first")
	until(t, "both rails are in use", func() bool { return h.log.count(`"rail in use" peer=bob`) >= 2 })
	h.lib.Set("hold_destroy", 1)
	t.Cleanup(func() { h.lib.Set("hold_destroy", 0) })
	h.lib.Set("break_wr", 5)
	p.theirs.b[7]++
	x := p.a.whole(transfer.Read, p.mine, p.theirs)
	x.run("second")
	p.b.expect("ann:second")
	p.same()
	require.Positive(t, h.lib.Count("held"))
}

// bothUse waits until both sessions of a pair use n links.
func (h *harness) bothUse(n int) {
	for _, peer := range []string{"ann", "bob"} {
		until(h, "all links to "+peer+" are in use", func() bool { return h.log.count(`"rail in use" peer=`+peer) >= n })
	}
}

// The kernel finds no neighbour for the links of three of four rails. Then the last rail's connections break. Its links connect all the
// same: neither the connects of the others nor the turns of fences hold them up.
func TestVerbsFenceOfLoneRail(t *testing.T) {
	t.Parallel()
	const links = 8
	h := onVerbs(t, 4)
	p := h.pair(16<<20, "qps_per_rail", fmt.Sprint(links))
	p.a.whole(transfer.Write, p.mine, p.theirs).run("first")
	p.b.expect("ann:first")
	h.bothUse(4 * links)
	h.lib.Set("hold_rtr", 7)
	t.Cleanup(func() { h.lib.Set("hold_rtr", 0) })
	for device := range 3 {
		h.lib.Event(device, imitation.PortErr, 1)
	}
	until(t, "the links of three rails in both sessions are being connected", func() bool { return h.lib.Count("held") == 2*3*links })
	p.mine.b[7]++
	x := p.a.whole(transfer.Write, p.mine, p.theirs)
	x.post("second")
	h.lib.Break()
	require.Equal(t, done, x.wait())
	p.b.expect("ann:second")
	p.same()
	require.Positive(t, h.lib.Count("held"))
}

var fencedRail = regexp.MustCompile(`"fencing a link" peer=bob rail=verbs/hca(\d)`)

// Two links fail at the same time, and the kernel finds no neighbour for either. The first one's FENCE is answered while the second does not
// work either. When the second is renewed, it has the work of the first, whose endpoints are still being connected. The log says that
// the first rail is down.
//
// On a starved host a queue pair may not be flushed in time. Then closing waits for ibv_destroy_qp, which this test holds up, and it tries again.
func TestVerbsFenceHandsOverLate(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]int{"WRITE": transfer.Write, "READ": transfer.Read} {
		t.Run(name, func(t *testing.T) {
			for range 30 {
				if handsOverLate(t, op) {
					return
				}
			}
			t.Fatal("both links were never fenced at the same time")
		})
	}
}

// handsOverLate returns false if the two links were not fenced while ibv_destroy_qp was held up, or the first one's connections did not last as
// long as the work.
func handsOverLate(t *testing.T, op int) bool {
	h := onVerbs(t, 2)
	p := h.pair(16 << 20)
	p.a.whole(op, p.mine, p.theirs).run("first")
	p.b.expect("ann:first")
	h.bothUse(2)
	h.lib.Set("hold_rtr", 3)
	t.Cleanup(func() { h.lib.Set("hold_rtr", 0) })
	p.mine.b[7]++
	p.theirs.b[9]++
	x := p.a.whole(op, p.mine, p.theirs)
	h.lib.Set("delay", 300) // both links have requests when they break
	x.post("second")
	h.lib.Set("hold_destroy", 1) // the peer answers after 5 ms: both links have failed by then
	t.Cleanup(func() { h.lib.Set("hold_destroy", 0) })
	h.lib.Set("delay", 0) // on a starved host closing polls too seldom to flush delayed requests in time
	h.lib.Break()
	both := within(2*time.Second, func() bool { return h.log.count(`"fencing a link" peer=bob`) == 2 })
	h.lib.Set("hold_destroy", 0)
	if !both {
		h.lib.Set("hold_rtr", 0)
		require.Equal(t, done, x.wait())
		return false
	}
	until(t, "both links of both sessions are being connected", func() bool { return h.lib.Count("held") == 4 })
	first := fencedRail.FindStringSubmatch(h.log.String())
	require.NotNil(t, first)
	h.lib.Set("hold_rtr", 1<<(first[1][0]-'0'))
	require.Equal(t, done, x.wait())
	p.b.expect("ann:second")
	p.same()
	late := h.lib.Count("held") > 0 // else the first link's connections were given up before the work was done: on a starved host
	h.lib.Set("hold_rtr", 0)
	if !late {
		return false
	}
	until(t, "the first rail is in use again", func() bool { return h.log.count(`"rail in use" peer=bob`) > 2 })
	require.Equal(t, 1, h.log.count(`"rail down; other rails carry its work" peer=bob`), "one line for a failure")
	return true
}
