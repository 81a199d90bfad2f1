package peer

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// An engine listens on another address. The peers of its sessions are told, in both directions, and connect there. So are those of later sessions.
func TestMoved(t *testing.T) {
	from, to := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.9")
	p := newPair(t, minute)
	before := p.to.Addrs()
	require.NoError(t, p.to.Move(from, to))
	require.NoError(t, p.from.Move(from, to))
	require.NotEqual(t, before, p.to.Addrs())
	require.Equal(t, to, netip.MustParseAddrPort(p.to.Addrs()[0]).Addr())
	require.Error(t, p.to.Move(from, to), "nothing listens there any more")
	require.Error(t, p.to.Move(to, netip.MustParseAddr("192.0.2.1")), "not an address of this host")
	p.to.Tell()
	p.from.Tell()
	require.Equal(t, p.to.Addrs(), want[evMoved](t, p.i.events).control)
	require.Equal(t, p.from.Addrs(), want[evMoved](t, p.s.events).control)
	eventually(t, func() bool { return p.out.where().String() == p.to.Addrs()[0] }, "the session moves to the new address")
	p.in.Suspect(netip.Addr{}, "cut") // the old address is no way back
	eventually(t, func() bool { return p.from.Stats().Resumed >= 2 }, "resumed over the new address")
	p.out.Drain(7)
	require.EqualValues(t, 7, want[evDrained](t, p.i.events).next)

	i := newInitiator()
	p.from.Dial(blob(p.to), 0, i) // a session that begins later
	require.Equal(t, p.from.Addrs(), want[evMoved](t, nextOf[evHello](t, p.s.events)).control)
}

// nextOf drops one event.
func nextOf[T any](t *testing.T, ev events) events {
	t.Helper()
	want[T](t, ev)
	return ev
}

// A session that has lost its connection to an address that is gone finds the peer as soon as it is told where that is.
func TestMovedWhileAway(t *testing.T) {
	r := newMultipath(t, 1, minute)
	r.works(t)
	r.paths[0].close()
	eventually(t, r.out.searching, "nobody answers")
	r.out.Moved(r.to.Addrs())
	r.resumed(t, 1)
	r.works(t)
}
