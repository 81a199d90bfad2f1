package engine

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	imitation "gorail/test/verbs"
)

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
			// The queue's error may reach operations first, and then they are the reason.
			require.True(t, c.event == imitation.CQErr || h.log.has("fencing a link", "hca1", "the network device went down"))
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
