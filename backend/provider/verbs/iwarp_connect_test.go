package verbs

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/limits"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
	imitation "gorail/test/verbs"
)

// A connection fails at each step. Posted operations end once, later posts are refused, and no call blocks.
func TestIWarpConnectFaults(t *testing.T) {
	for name, c := range map[string]struct {
		set  string
		call string
		want syscall.Errno
	}{
		"unreachable": {set: "cm_unreachable", want: syscall.EHOSTUNREACH},
		"silent":      {set: "cm_silent", want: syscall.ETIMEDOUT},
		"route":       {call: "cm_route", want: syscall.EIO},
		"connect":     {call: "cm_connect", want: syscall.EIO},
		"accept":      {call: "cm_accept", want: syscall.ETIMEDOUT}, // at the requesting side; EIO at the other side
	} {
		t.Run(name, func(t *testing.T) {
			lib := imitation.Build(t)
			o := iwarp(t, lib)
			o.connectTime = 50 * time.Millisecond
			a, b := newSide(t, o), newSide(t, o)
			if c.set != "" {
				lib.Set(c.set, 1)
			} else {
				lib.Fail(c.call, 1, syscall.EIO)
			}
			x, y := link(a, b)
			for i, s := range []*side{a, b} {
				ep := []provider.Endpoint{x, y}[i]
				require.NoError(t, s.d.Recv(ep.Core(), 7, s.mem[:64], s.mr.Desc()))
			}
			a.eventually(7)
			b.eventually(7)
			var errs []error
			for i, s := range []*side{a, b} {
				ep := []provider.Endpoint{x, y}[i]
				require.Equal(t, syscall.ECANCELED, s.done[7].Err)
				err := s.d.RMA(ep.Core(), drive.Write, 8, s.segs([]*side{b, a}[i], 1, 64)...)
				require.Error(t, err)
				require.NotErrorIs(t, err, syscall.EAGAIN)
				errs = append(errs, err)
			}
			require.Contains(t, fmt.Sprint(errs), c.want.Error())
		})
	}
}

// Both ends report a lost connection.
func TestIWarpLost(t *testing.T) {
	lib := imitation.Build(t)
	o := iwarp(t, lib)
	a, b := newSide(t, o), newSide(t, o)
	x, y := link(a, b)
	settled(t, a, b, x, y)
	require.NoError(t, a.d.Recv(x.Core(), 7, a.mem[:64], a.mr.Desc()))
	require.NoError(t, y.Close())
	a.eventually(7)
	require.Equal(t, syscall.ECANCELED, a.done[7].Err)
	require.Eventually(t, func() bool {
		return a.d.RMA(x.Core(), drive.Write, 8, a.segs(b, 1, 64)...) == syscall.ECONNRESET
	}, 10*time.Second, time.Millisecond)
}

// A request is refused if its cookie is unknown, or if it comes from another endpoint than Connect named.
func TestIWarpUnauthenticated(t *testing.T) {
	lib := imitation.Build(t)
	o := iwarp(t, lib)
	b, a := newSide(t, o), newSide(t, o) // the later listener has the greater port, so a sends the request
	first := func() (x, y provider.Endpoint) {
		x, err := a.rail.OpenEndpoint()
		require.NoError(t, err)
		y, err = b.rail.OpenEndpoint()
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, x.Close())
			require.NoError(t, y.Close())
		})
		require.Greater(t, string(x.Addr()), string(y.Addr()))
		return x, y
	}
	rejected := uint64(0)
	refused := func(x provider.Endpoint) {
		t.Helper()
		require.NoError(t, a.d.Recv(x.Core(), 7, a.mem[:64], a.mr.Desc()))
		a.eventually(7)
		require.Equal(t, 1, lib.Count("cm_rejects"))
		rejected++
		require.Equal(t, map[limits.Limit]uint64{limits.IWarpRequests: rejected}, b.rail.(provider.Limiter).Limited())
		require.Equal(t, syscall.ECONNREFUSED, a.d.RMA(x.Core(), drive.Write, 8, a.segs(b, 1, 64)...))
		delete(a.done, 7)
	}
	x, y := first()
	addr, ok := decodeIWAddress(y.Addr())
	require.True(t, ok)
	lib.Zero()
	addr.Cookie--
	require.NoError(t, x.Connect(addr.encode()))
	refused(x)

	x, y = first()
	other, _ := first()
	require.NoError(t, y.Connect(other.Addr())) // y waits for a request from other
	lib.Zero()
	require.NoError(t, x.Connect(y.Addr()))
	refused(x)
}

// An endpoint is closed while rdma_connect is running. Close does not wait, and posted operations end. The rest is
// destroyed when rdma_connect returns, also if the rail is closed by then.
func TestIWarpCloseInConnect(t *testing.T) {
	for _, railFirst := range []bool{false, true} {
		lib := imitation.Build(t)
		o := iwarp(t, lib)
		devs, err := New(o).Discover(context.Background(), provider.Filter{})
		require.NoError(t, err)
		rail, err := New(o).Open(devs[0])
		require.NoError(t, err)
		d := drive.New(rail.Core())
		x, err := rail.OpenEndpoint()
		require.NoError(t, err)
		peer := iwAddress{IP: netip.MustParseAddr("127.0.0.1"), Port: 1, Reads: 1}
		lib.Set("cm_block", 1)
		require.NoError(t, x.Connect(peer.encode()))
		require.Eventually(t, func() bool { return lib.Count("cm_connects") == 1 }, 10*time.Second, time.Millisecond)
		mem := drive.Alloc(64)
		mr, err := rail.Register(drive.Addr(mem), 64, 0, access.Both)
		require.NoError(t, err)
		require.NoError(t, d.Recv(x.Core(), 7, mem, mr.Desc()))
		require.NoError(t, x.Close())
		comps, err := d.Poll(4)
		require.NoError(t, err)
		require.Equal(t, []drive.Comp{{ID: 7, Err: syscall.ECANCELED}}, comps)
		require.NoError(t, mr.Close())
		if !railFirst {
			lib.Set("cm_block", 0)
			require.Eventually(t, func() bool { return lib.Count("qps") == 0 }, 10*time.Second, time.Millisecond)
		}
		require.NoError(t, rail.Close())
		lib.Set("cm_block", 0)
		require.Eventually(t, func() bool { return len(lib.Open()) == 0 }, 10*time.Second, time.Millisecond)
	}
}

// Each set-up call of rdma_cm fails in turn. Nothing stays open.
func TestIWarpSetUpFaults(t *testing.T) {
	lib := imitation.Build(t)
	o := iwarp(t, lib)
	mem := drive.Alloc(1 << 16)
	require.NoError(t, life(t, o, mem))
	for _, call := range []string{"cm_channel", "cm_id", "cm_bind", "cm_listen", "cm_resolve", "modify_init", "create_qp", "reg_mr", "post_recv"} {
		failed := 0
		for n := 1; n <= 12; n++ {
			lib.Fail(call, n, syscall.EMFILE)
			if err := life(t, o, mem); err != nil {
				require.ErrorIs(t, err, syscall.EMFILE, "%s %d", call, n)
				failed++
			}
			require.Eventually(t, func() bool { return len(lib.Open()) == 0 }, 10*time.Second, 100*time.Microsecond, "%s %d: %v", call, n,
				lib.Open()) // an rdma_connect may still be running
			lib.Fail(call, 0, 0)
		}
		require.Positive(t, failed, call)
	}
}

// Without librdmacm an iWARP device is unusable, and the error names the package to install. Other devices do not need
// the library.
func TestIWarpLibrary(t *testing.T) {
	lib := imitation.Build(t)
	o := iwarp(t, lib)
	o.CMLibraryPath = t.TempDir() + "/librdmacm.so.1"
	_, err := New(o).Discover(context.Background(), provider.Filter{})
	require.ErrorIs(t, err, provider.ErrUnusable)
	require.NotErrorIs(t, err, provider.ErrNoDevice)
	require.ErrorContains(t, err, "apt-get install librdmacm1")
	require.ErrorContains(t, err, "rdmacm_path")
	lib.Set("iwarp", 0)
	_, err = New(o).Discover(context.Background(), provider.Filter{})
	require.NoError(t, err)

	lib.Set("iwarp", 1)
	devs, err := New(iwarp(t, lib)).Discover(context.Background(), provider.Filter{})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", devs[0].Addr)
	require.Equal(t, "iwarp:127.0.0.0/8", devs[0].Subnet)
	lib.Fail("cm_bind", 1, syscall.ENODEV)
	_, err = New(iwarp(t, lib)).Discover(context.Background(), provider.Filter{})
	require.ErrorIs(t, err, provider.ErrUnusable)
	require.ErrorContains(t, err, "hca0: iWARP without an IP address")
}

// The listener uses the first free port of the range. If none is free, the error names the option.
func TestIWarpDataPort(t *testing.T) {
	lib := imitation.Build(t)
	o := iwarp(t, lib)
	o.Ports = option.PortRange{First: 7200, Last: 7201}
	for _, want := range []uint16{7200, 7201} {
		x, err := newSide(t, o).rail.OpenEndpoint()
		require.NoError(t, err)
		t.Cleanup(func() { x.Close() })
		addr, ok := decodeIWAddress(x.Addr())
		require.True(t, ok)
		require.Equal(t, want, addr.Port)
	}
	p := New(o)
	devs, err := p.Discover(context.Background(), provider.Filter{})
	require.NoError(t, err)
	_, err = p.Open(devs[0])
	require.ErrorContains(t, err, "option data_port=7200-7201")
}
