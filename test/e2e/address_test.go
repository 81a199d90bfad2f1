package e2e

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// readdress replaces the address of an interface: the old one goes before the new one comes.
func (h *host) readdress(name string, old, now net.IP) {
	h.T.Helper()
	h.loses(name, old)
	h.gets(name, now)
}

func (h *host) loses(name string, ip net.IP) {
	h.T.Helper()
	require.NoError(h.T, h.NL.AddrDel(h.Link(name), &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}}))
}

func (h *host) gets(name string, ip net.IP) {
	h.T.Helper()
	require.NoError(h.T, h.NL.AddrAdd(h.Link(name), &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}}))
}

// writes posts until a WRITE is through, and compares the bytes.
func writes(t *testing.T, x *worker.Xfer, from, to *worker.Buf, seed uint64, output func() string) {
	t.Helper()
	from.Fill(seed)
	require.True(t, worker.Eventually(limit, func() bool {
		s := x.Try(limit)
		return s == nixlapi.Success
	}), "%s", output())
	to.Want(seed)
}

// TestAddressReplaced: DHCP, or a moved pod. The address of an interface is replaced, at either end or at both in turn, in the middle of transfers.
// The sessions of both directions go on over the new addresses without the applications, and metadata of before still loads.
func TestAddressReplaced(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	for _, ends := range [][]string{{"here"}, {"there"}, {"here", "there"}} {
		t.Run(fmt.Sprint(ends), func(t *testing.T) {
			ha, hb, p := over(t, "devices", "fast0", "log", "info")
			p.ini.Polling(true)
			a, b := p.buffers(size)
			p.tgt.Learn(p.ini)
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("w")})
			y := p.tgt.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: b.All(), Remote: a.All(), Peer: "alice", Notif: []byte("v")})
			x.Do(limit)
			b.Want(seedA)
			y.Do(limit)
			output := func() string { return p.ini.Output() + "\n\n" + p.tgt.Output() }
			for i, end := range ends {
				loop := x.LoopAsync(worker.LoopArgs{N: 30, Timeout: limit})
				require.NotEmpty(t, p.tgt.WaitNotifs(2, limit))
				h, w, old, now := ha, p.ini, net.IPv4(10, 77, 0, 1), net.IPv4(10, 77, 0, 66)
				if end == "there" {
					h, w, old, now = hb, p.tgt, net.IPv4(10, 77, 0, 2), net.IPv4(10, 77, 0, 67)
				}
				h.readdress("fast0", old, now)
				loop.Wait()
				says(t, w.Worker, fmt.Sprintf("%s of fast0 is gone, now %s", old, now))
				writes(t, x, a, b, uint64(seedC+2*i), output)
				writes(t, y, b, a, uint64(seedC+2*i+1), output)
			}
			fresh := p.ini.Buffer(size, seedA) // metadata that NIXL made before the change
			require.NoError(t, p.tgt.Invalidate("alice"))
			p.tgt.Learn(p.ini)
			z := p.tgt.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: b.All(), Remote: fresh.All(), Peer: "alice"})
			require.True(t, worker.Eventually(limit, func() bool {
				s := z.Try(limit)
				return s == nixlapi.Success
			}), "%s", output())
			b.Want(seedA)
			exit(t, p.ini, p.tgt)
		})
	}
}

// TestAddressOfOneRail: one of two rails gets another address at the target, whose peer it has not loaded. Transfers go on over the other rail, and
// over the new address after the peer was told.
func TestAddressOfOneRail(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	ha, hb, p := over(t, "log", "info")
	a, b := p.buffers(size)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("w")})
	x.Do(limit)
	hb.readdress("fast0", net.IPv4(10, 77, 0, 2), net.IPv4(10, 77, 0, 67))
	says(t, p.tgt.Worker, "10.77.0.2 of fast0 is gone, now 10.77.0.67")
	says(t, p.ini.Worker, "a peer has other control addresses", "10.77.0.67:")
	before, rounds := ha.Sent("fast0"), 0
	require.True(t, worker.Eventually(long, func() bool {
		rounds++
		a.Fill(uint64(seedC + rounds))
		x.Do(limit) // no post fails
		b.Want(uint64(seedC + rounds))
		return ha.Sent("fast0")-before > size/4
	}), "%s\n%s", p.ini.Output(), p.tgt.Output())
	exit(t, p.ini, p.tgt)
}

// TestAddressGone: an interface loses its address and gets none for a while. A READ that no other rail can take ends with an error, not after
// peer_timeout. When the address is there again, or another one, the next posts work.
func TestAddressGone(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	for _, back := range []byte{1, 66} {
		t.Run(fmt.Sprint("back as ", back), func(t *testing.T) {
			ha, _, p := over(t, "devices", "fast0", "log", "info")
			a, b := p.buffers(size)
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("w")})
			reads := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("r")})
			loop := reads.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
			require.NotEmpty(t, p.tgt.WaitNotifs(2, limit))
			began := time.Now()
			ha.loses("fast0", net.IPv4(10, 77, 0, 1))
			require.True(t, loop.Wait().Status.Failed(), "%s", p.ini.Output())
			require.Less(t, time.Since(began), testenv.Patient(4*time.Second))
			says(t, p.ini.Worker, "has lost its address", "interface=fast0", "addr=10.77.0.1")
			require.True(t, p.ini.Knows("bob"))
			posts := []*worker.Xfer{x, p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob"})}
			for range 3 { // the first may still find the session, the others find that there is no address
				for _, x := range posts {
					failsSoon(t, p, x)
				}
			}
			ha.gets("fast0", net.IPv4(10, 77, 0, back))
			writes(t, x, a, b, seedC, func() string { return p.ini.Output() })
			require.NoError(t, x.Release())
			require.NoError(t, p.ini.Exit())
		})
	}
}

// TestAddressAdded: further addresses come and go, as privacy addresses of IPv6 do. The rail keeps its own, and no connection is touched.
func TestAddressAdded(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	ha, _, p := over(t, "devices", "fast0", "log", "info")
	a, b := p.buffers(size)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("w")})
	x.Do(limit)
	for i := range byte(5) {
		ha.gets("fast0", net.IPv4(10, 77, 0, 100+i))
		six := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(fmt.Sprintf("2001:db8::%d", i+1)), Mask: net.CIDRMask(64, 128)}}
		require.NoError(t, ha.NL.AddrAdd(ha.Link("fast0"), six))
		x.Do(limit)
		ha.loses("fast0", net.IPv4(10, 77, 0, 100+i))
		require.NoError(t, ha.NL.AddrDel(ha.Link("fast0"), six))
		x.Do(limit)
	}
	b.Want(seedA)
	require.NotContains(t, p.ini.Output(), "is gone")
	require.NotContains(t, p.ini.Output(), "fencing")
	require.NoError(t, p.ini.Exit())
}

// failsSoon posts a transfer, which must end with an error within the bound.
func failsSoon(t *testing.T, p *pairOf, x *worker.Xfer) {
	t.Helper()
	began := time.Now()
	s := x.Try(limit)
	require.True(t, s.Failed(), "%s\n%s", s, p.ini.Output())
	require.Less(t, time.Since(began), testenv.Patient(4*time.Second), "%s", p.ini.Output()) // 2 s are promised
}

// TestAddressGonePosts: posts while an interface has no address, from the moment when its links have ended. Each ends with an error within the bound, long before
// peer_timeout, and none is a success before the address is there again.
func TestAddressGonePosts(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	ha, _, p := over(t, "devices", "fast0", "log", "info")
	a, b := p.buffers(size)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	x.Do(limit)
	ha.loses("fast0", net.IPv4(10, 77, 0, 1))
	// A WRITE that was on its way when the link ended may still land: it waits for the peer, or peer_timeout.
	says(t, p.ini.Worker, "fencing a link", "10.77.0.1 of fast0 is gone")
	for began := time.Now(); time.Since(began) < time.Duration(rounds(2, 4))*time.Second; {
		failsSoon(t, p, x)
	}
	ha.gets("fast0", net.IPv4(10, 77, 0, 1))
	writes(t, x, a, b, seedC, func() string { return p.ini.Output() })
	require.NoError(t, p.ini.Exit())
}

// six returns an IPv6 address of the wire fast0.
func six(last int) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(fmt.Sprintf("2001:db8:77::%x", last)), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}
}

// TestAddressFamily: an interface with addresses of both families loses the one of its rail, and gets another one later. The rail waits for it: peers
// do not reach it by the other family.
func TestAddressFamily(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	ha, _, p := over(t, "devices", "fast0", "log", "info")
	require.NoError(t, ha.NL.AddrAdd(ha.Link("fast0"), six(1)))
	a, b := p.buffers(size)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	x.Do(limit)
	ha.loses("fast0", net.IPv4(10, 77, 0, 1))
	says(t, p.ini.Worker, "has lost its address", "interface=fast0")
	ha.gets("fast0", net.IPv4(10, 77, 0, 66))
	says(t, p.ini.Worker, "10.77.0.1 of fast0 is gone, now 10.77.0.66")
	writes(t, x, a, b, seedC, func() string { return p.ini.Output() })
	require.NoError(t, p.ini.Exit())
}
