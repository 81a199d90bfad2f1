package peer

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOverdue: a target that owes something is asked at once, and once. Where the fabric's bytes have no answer, the session goes on over another connection,
// and both sides are told between which addresses. Nothing else is lost.
func TestOverdue(t *testing.T) {
	p := newPair(t, minute)
	time.Sleep(2 * maxHeartbeat / 50) // not heard just now
	heard := p.out.LastHeard()
	p.out.Overdue(false)
	p.out.Overdue(false)
	eventually(t, func() bool { return p.out.LastHeard().After(heard) }, "its answer comes long before a ping is due")
	require.Zero(t, p.from.Stats().Resumed)
	require.EqualValues(t, 1, p.out.stream.w.seq)

	time.Sleep(2 * maxHeartbeat / 50)
	p.out.Drain(7)
	p.out.Overdue(true)
	own := netip.MustParseAddr("127.0.0.1")
	require.EqualValues(t, 7, want[evDrained](t, p.i.events).next)
	require.Equal(t, evResumed{own, own}, want[evResumed](t, p.i.ways))
	require.Equal(t, evResumed{own, own}, want[evResumed](t, p.s.ways))
	p.out.Drain(8)
	require.EqualValues(t, 8, want[evDrained](t, p.i.events).next)
}

// TestTakeAsk: one question for each silence, and none for a peer that was heard just now.
func TestTakeAsk(t *testing.T) {
	now := time.Now()
	m := newMonitor(time.Minute, 5*time.Second, now)
	ask := func(after time.Duration) bool { ask, _ := m.TakeAsk(now.Add(after)); return ask }
	require.False(t, ask(99*time.Millisecond))
	require.True(t, ask(100*time.Millisecond))
	require.False(t, ask(time.Second), "it has no answer")
	m.Hear(now.Add(2 * time.Second))
	require.False(t, ask(2050*time.Millisecond))
	require.True(t, ask(2100*time.Millisecond))
	m.Apart()
	m.Hear(now.Add(3 * time.Second))
	m.Apart()
	require.False(t, ask(4*time.Second), "there is no connection")
}
