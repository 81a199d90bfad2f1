package peer

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
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

// deafen makes the kernel drop all that arrives for the target's connection, as a network does on which small packets alone get through.
func (p *pair) deafen(t *testing.T) {
	t.Helper()
	s := p.in.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, err := s.path.conn.Conn.(*SecureConn).NetConn().(syscall.Conn).SyscallConn()
	require.NoError(t, err)
	none := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none})
	}))
	require.NoError(t, err)
}

// TestSoughtNoMore: each connection of the session is found to be without answers soon after it has begun. The session looks for another one once a second
// all the same: each costs a handshake, and the links their fences.
func TestSoughtNoMore(t *testing.T) {
	p := newPair(t, minute)
	begun := time.Now()
	p.deafen(t)
	for next := uint64(1); time.Since(begun) < 2500*time.Millisecond; time.Sleep(owedEvery) {
		p.out.Drain(next)
		p.out.Overdue(false)
		select {
		case <-p.s.ways:
			p.deafen(t)
		default:
		}
		next++
	}
	require.Positive(t, p.from.Stats().Resumed)
	require.LessOrEqual(t, p.from.Stats().Resumed, uint64(time.Since(begun)/soughtEvery)+1)
}

// TestAhead: a target that neither answers nor acknowledges is looked for over other connections, long before the silence that is waited for
// otherwise. One that answers is not.
func TestAhead(t *testing.T) {
	p := newPair(t, minute)
	tries := func() (at time.Time) {
		p.out.stream.Do(func(lockedStream) { at = p.out.overdue.ahead })
		return at
	}
	owed := func() { time.Sleep(owedEvery); p.out.Overdue(false) }
	heard := p.out.LastHeard()
	eventually(t, func() bool { owed(); return p.out.LastHeard().After(heard) }, "it was asked, and has answered")
	require.Zero(t, p.from.Stats().Resumed)
	p.deafen(t)
	eventually(t, func() bool { owed(); return !tries().IsZero() }, "its kernel acknowledges nothing")
	eventually(t, func() bool { return p.from.Stats().Resumed == 1 }, "it is found")
}

// owedEvery is the time between calls of Overdue.
const owedEvery = 20 * time.Millisecond

// TestTakeAsk: one question for each silence, and none for a peer that was heard just now.
func TestTakeAsk(t *testing.T) {
	now := time.Now()
	m := newMonitor(time.Minute, 5*time.Second, now)
	early := false
	ask := func(after time.Duration) bool {
		ask, _ := m.TakeAsk(now.Add(after), func() bool { return early })
		return ask
	}
	require.False(t, ask(99*time.Millisecond))
	require.Zero(t, m.Unanswered(now.Add(99*time.Millisecond)))
	require.True(t, ask(100*time.Millisecond))
	require.False(t, ask(time.Second), "it has no answer")
	m.Pinged(now.Add(time.Second))
	require.Equal(t, 1900*time.Millisecond, m.Unanswered(now.Add(2*time.Second)), "since the first")
	m.Hear(now.Add(2 * time.Second))
	require.False(t, ask(2050*time.Millisecond))
	require.True(t, ask(2100*time.Millisecond))
	m.Hear(now.Add(2200 * time.Millisecond))
	early = true
	require.False(t, ask(2219*time.Millisecond))
	require.True(t, ask(2220*time.Millisecond), "few are asked now")
	m.Apart()
	m.Hear(now.Add(3 * time.Second))
	m.Apart()
	require.False(t, ask(4*time.Second), "there is no connection")
}

// TestTrips: a request for a connection lasts long enough for the answer of its own address, which another address does not shorten.
func TestTrips(t *testing.T) {
	near, far, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	var all trips
	require.Zero(t, all.of(far))
	for _, took := range []time.Duration{70, 50, 60} {
		all.note(far, took*time.Millisecond)
		all.note(near, took*time.Microsecond)
	}
	require.Equal(t, 50*time.Millisecond, all.of(far))
	require.Equal(t, 50*time.Microsecond, all.of(near))
	require.Equal(t, 50*time.Millisecond, all.of(other), "nobody knows")
	p := newPair(t, minute)
	k := &reconnect{out: p.out, begun: time.Now()}
	p.out.stream.Do(func(lockedStream) { p.out.trips = all })
	require.Equal(t, 200*time.Millisecond, k.requestPause(far))
	require.Less(t, k.requestPause(near), 200*time.Millisecond)
	for i := range byte(200) {
		all.note(netip.AddrFrom4([4]byte{10, 1, 0, i}), time.Second)
		require.LessOrEqual(t, len(all), mostTrips)
	}
}
