package verbs

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/test/drive"
	imitation "gorail/test/verbs"
)

const (
	v1 = "IB/RoCE v1"
	v2 = "RoCE v2"
)

// table returns a sysfs with one GID table: address and kind by index. An address of "" cannot be read.
func table(entries map[int][2]string) fstest.MapFS {
	sys := fstest.MapFS{}
	for i, e := range entries {
		dir := "class/infiniband/mlx5_0/ports/1/"
		if e[0] != "" {
			sys[fmt.Sprint(dir, "gids/", i)] = &fstest.MapFile{Data: []byte(netip.MustParseAddr(e[0]).StringExpanded() + "\n")}
		}
		if e[1] != "" {
			sys[fmt.Sprint(dir, "gid_attrs/types/", i)] = &fstest.MapFile{Data: []byte(e[1] + "\n")}
			sys[fmt.Sprint(dir, "gid_attrs/ndevs/", i)] = &fstest.MapFile{Data: []byte("eth0\n")}
		}
	}
	return sys
}

const (
	ipv4      = "::ffff:192.0.2.7"
	global    = "2001:db8::7"
	private   = "fd00::7"
	linkLocal = "fe80::7"
)

func TestChooseGID(t *testing.T) {
	type entries = map[int][2]string
	for name, c := range map[string]struct {
		entries    entries
		infiniband bool
		asked      int // -1: the best
		want       int // index, -1: an error
		err        string
	}{
		"IPv4 first":         {entries: entries{0: {linkLocal, v2}, 1: {private, v2}, 2: {global, v2}, 3: {ipv4, v2}}, asked: -1, want: 3},
		"then global":        {entries: entries{0: {linkLocal, v2}, 1: {private, v2}, 2: {global, v2}, 3: {ipv4, v1}}, asked: -1, want: 2},
		"then private":       {entries: entries{0: {linkLocal, v2}, 1: {private, v2}, 2: {global, v1}}, asked: -1, want: 1},
		"then link-local":    {entries: entries{0: {linkLocal, v1}, 1: {linkLocal, v2}, 2: {private, v1}}, asked: -1, want: 1},
		"the first of equal": {entries: entries{2: {ipv4, v2}, 5: {"::ffff:10.0.0.1", v2}}, asked: -1, want: 2},
		"link-local IPv4":    {entries: entries{0: {"::ffff:169.254.1.1", v2}, 1: {global, v2}}, asked: -1, want: 0},
		"v1 on demand":       {entries: entries{0: {ipv4, v1}, 1: {ipv4, v2}}, asked: 0, want: 0},
		"any on demand":      {entries: entries{0: {ipv4, v2}, 1: {linkLocal, v2}}, asked: 1, want: 1},
		"holes":              {entries: entries{1: {"", v2}, 3: {"::", v2}, 6: {global, v2}}, asked: -1, want: 6},
		"v1 alone": {entries: entries{0: {linkLocal, v1}, 1: {ipv4, v1}}, asked: -1, want: -1,
			err: "no RoCE v2 entry: [0: fe80::7 IB/RoCE v1, 1: ::ffff:192.0.2.7 IB/RoCE v1]; give the interface an IP address, or choose with option gid_index"},
		"kind unknown":       {entries: entries{0: {ipv4, ""}}, asked: -1, want: -1, err: "no RoCE v2 entry: [0: ::ffff:192.0.2.7 ]"},
		"empty":              {asked: -1, want: -1, err: "no RoCE v2 entry: []"},
		"not there":          {entries: entries{0: {ipv4, v2}}, asked: 3, want: -1, err: "no entry 3 (option gid_index): [0: ::ffff:192.0.2.7 RoCE v2]"},
		"asked cannot be":    {entries: entries{0: {ipv4, v2}, 1: {"", v2}}, asked: 1, want: -1, err: "no entry 1 (option gid_index)"},
		"beyond the table":   {entries: entries{0: {ipv4, v2}, 9: {ipv4, v2}}, asked: 9, want: -1, err: "no entry 9"},
		"InfiniBand":         {entries: entries{0: {linkLocal, v1}, 1: {global, v1}}, infiniband: true, asked: -1, want: 0},
		"InfiniBand, second": {entries: entries{0: {linkLocal, v1}, 1: {global, v1}}, infiniband: true, asked: 1, want: 1},
		"InfiniBand, none":   {infiniband: true, asked: -1, want: -1, err: "the GID table has no entry 0: []"},
	} {
		t.Run(name, func(t *testing.T) {
			list := readGIDs(table(c.entries), "mlx5_0", 1, 8)
			g, err := chooseGID(list, !c.infiniband, c.asked)
			if c.want < 0 {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, g.index)
			require.Equal(t, "eth0", g.net)
			require.Equal(t, netip.MustParseAddr(c.entries[c.want][0]).Unmap(), g.addr.Unmap())
		})
	}
}

// FuzzAddress: every address that decodes has exactly one encoding.
func FuzzAddress(f *testing.F) {
	f.Add([]byte{})
	f.Add(address{}.encode())
	f.Add(address{QPN: 17, PSN: 0xabcdef, LID: 3, MTU: 4096, Reads: 16}.encode())
	f.Add(address{QPN: 1<<24 - 1, PSN: 1, MTU: 1024, Ethernet: true, Reads: 1, GID: netip.MustParseAddr(ipv4).As16()}.encode())
	f.Add(append(address{QPN: 1, MTU: 256, Reads: 1}.encode(), 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := decodeAddress(b)
		if !ok {
			return
		}
		require.Equal(t, b, a.encode())
		require.Less(t, a.QPN|a.PSN, uint32(1<<24))
		require.NotZero(t, a.Reads)
	})
}

// changingSys is a sysfs whose contents the test replaces.
type changingSys struct{ now atomic.Pointer[fs.FS] }

func (c *changingSys) set(sys fs.FS)                     { c.now.Store(&sys) }
func (c *changingSys) Open(name string) (fs.File, error) { return (*c.now.Load()).Open(name) }

// hca0 returns a GID table of the imitated device. All its addresses belong to the loopback interface.
func hca0(entries map[int]string) fs.FS {
	list := map[int][2]string{}
	for i, addr := range entries {
		if !strings.Contains(addr, ":") {
			addr = "::ffff:" + addr
		}
		list[i] = [2]string{addr, v2}
	}
	sys := fstest.MapFS{}
	for name, f := range table(list) {
		if string(f.Data) == "eth0\n" {
			f.Data = []byte("lo\n")
		}
		sys["class/infiniband/hca0/"+strings.TrimPrefix(name, "class/infiniband/mlx5_0/")] = f
	}
	return sys
}

// gidOf returns the GID of an endpoint.
func gidOf(t *testing.T, x provider.Endpoint) string {
	addr, ok := decodeAddress(x.Addr())
	require.True(t, ok)
	return netip.AddrFrom16(addr.GID).Unmap().String()
}

// TestMove: a rail takes the GID of its interface's new address once the kernel has entered it, and says so in its device. Endpoints from then on have it.
func TestMove(t *testing.T) {
	lib := imitation.Build(t)
	o := options(t, lib, true)
	sys := &changingSys{}
	sys.set(hca0(map[int]string{0: "127.0.0.9"}))
	o.Sys = sys
	a := newSide(t, o)
	to := netip.MustParsePrefix("127.0.0.2/8")
	before := a.rail.Device()
	require.Error(t, a.rail.(provider.Mover).Move(to), "not in the table yet")
	require.Equal(t, before, a.rail.Device(), "an error changes nothing")
	lib.Set("gid_holes", 1)
	sys.set(hca0(map[int]string{1: "127.0.0.7", 3: "127.0.0.2"}))
	require.NoError(t, a.rail.(provider.Mover).Move(to))
	d := a.rail.Device()
	require.Equal(t, []string{"127.0.0.2", "127.0.0.0/8"}, []string{d.Addr, d.Subnet})
	require.Equal(t, before.Name, d.Name)
	x, err := a.rail.OpenEndpoint()
	require.NoError(t, err)
	require.Equal(t, "127.0.0.2", gidOf(t, x))
	require.NoError(t, x.Close())
}

// A GID is removed, added again at another index, and replaced by another, also at the same index. Endpoints opened after the event have the
// GID at its new index, and that of another address once Move says so; older endpoints keep working. Without a GID, OpenEndpoint returns the
// reason, and the rail counts as down.
func TestGIDChange(t *testing.T) {
	lib := imitation.Build(t)
	o := options(t, lib, true)
	sys := &changingSys{}
	sys.set(hca0(map[int]string{0: "127.0.0.1", 1: "127.0.0.9"}))
	o.Sys, o.moreRNR = sys, 1
	a, b := newSide(t, o), newSide(t, o)
	ctx, cancel := context.WithCancel(context.Background())
	type event struct {
		up  bool
		why string
	}
	told, ended := []chan event{make(chan event, 16), make(chan event, 16)}, make(chan error, 2)
	for i, s := range []*side{a, b} {
		go func() {
			ended <- s.rail.(provider.Watcher).Watch(ctx, func(up bool, why string) { told[i] <- event{up, why} })
		}()
	}
	defer func() {
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	}()
	change := func(holes int, entries map[int]string, want ...event) {
		t.Helper()
		sys.set(hca0(entries))
		lib.Set("gid_holes", holes)
		lib.Event(0, imitation.GIDChange, 1)
		lib.Event(0, imitation.PortActive, 1) // arrives after the reports of the GID change
		for _, w := range append(want, event{true, "port active"}) {
			for _, told := range told {
				select {
				case got := <-told:
					require.Equal(t, w, got)
				case <-time.After(10 * time.Second):
					t.Fatal("no event was reported")
				}
			}
		}
	}
	id := uint64(0)
	works := func(x provider.Endpoint) {
		t.Helper()
		id++
		require.NoError(t, a.d.RMA(x.Core(), drive.Write, id, a.segs(b, 1, 4096)...))
		a.until(int(id))
		require.Zero(t, a.done[id].Err)
	}
	first, _ := link(a, b)
	require.Equal(t, "127.0.0.1", gidOf(t, first))

	// A change of another address is not reported.
	change(0, map[int]string{0: "127.0.0.1"})
	change(0, map[int]string{0: "127.0.0.1", 1: "127.0.0.9"})

	change(2, map[int]string{0: linkLocal}, event{false, "GID table change: 127.0.0.1 is gone: the GID table does not have it; lo gets another address, or this one again"})
	_, err := a.rail.OpenEndpoint()
	require.ErrorIs(t, err, provider.ErrEndpoint)
	require.ErrorContains(t, err, "hca0: 127.0.0.1 is gone: the GID table does not have it")
	works(first)
	change(2, map[int]string{0: linkLocal}) // reported once

	change(5, map[int]string{1: "127.0.0.9", 3: "127.0.0.1"}, event{true, "GID table change: 127.0.0.1 at index 3, was 127.0.0.1 at 0"})
	second, _ := link(a, b) // the entry at index 0 is refused
	require.Equal(t, "127.0.0.1", gidOf(t, second))
	works(second)

	change(1, map[int]string{3: "127.0.0.2"}, event{false, "GID table change: 127.0.0.1 is gone: the GID table does not have it; lo gets another address, or this one again"})
	_, err = a.rail.OpenEndpoint()
	require.ErrorIs(t, err, provider.ErrEndpoint, "not from an address that nobody chose")
	for _, s := range []*side{a, b} {
		require.NoError(t, s.rail.(provider.Mover).Move(netip.MustParsePrefix("127.0.0.2/8")))
	}
	change(1, map[int]string{2: "127.0.0.2"}, event{true, "GID table change: 127.0.0.2 at index 2, was 127.0.0.2 at 3"})
	third, _ := link(a, b)
	require.Equal(t, "127.0.0.2", gidOf(t, third))
	for _, x := range []provider.Endpoint{first, second, third} {
		works(x)
	}
	require.Empty(t, told[0])
	require.Empty(t, told[1])
}

// The interface below a device is not of this network namespace. Nobody follows its addresses there, so the rail takes another address of the
// same rank by itself.
func TestGIDChangeElsewhere(t *testing.T) {
	lib := imitation.Build(t)
	o := options(t, lib, true)
	sys := &changingSys{}
	sys.set(hca0(map[int]string{0: "127.0.0.9", 1: linkLocal}))
	o.Sys = sys
	r := newSide(t, o).rail.(*rail)
	require.Empty(t, r.Device().Net)
	sys.set(hca0(map[int]string{0: linkLocal, 3: "127.0.0.2"}))
	changed, err := r.resolveGID()
	require.NoError(t, err)
	require.Equal(t, "127.0.0.2 at index 3, was 127.0.0.9 at 0", changed)
	sys.set(hca0(map[int]string{0: linkLocal}))
	_, err = r.resolveGID()
	require.ErrorContains(t, err, "127.0.0.2 is gone: the GID table has no RoCE v2 entry")
}

// With option gid_index the rail follows its address, too. The new one may be at another index: queue pairs may still hold the old one's.
func TestMoveAsked(t *testing.T) {
	lib := imitation.Build(t)
	o := options(t, lib, true)
	sys := &changingSys{}
	sys.set(hca0(map[int]string{0: "127.0.0.9", 1: "127.0.0.1"}))
	o.Sys, o.GIDIndex = sys, 1
	r := newSide(t, o).rail.(*rail)
	at := func() int {
		g, err := r.source()
		require.NoError(t, err)
		return g.index
	}
	require.Equal(t, 1, at())
	sys.set(hca0(map[int]string{1: "127.0.0.9", 2: "127.0.0.1"}))
	_, err := r.resolveGID()
	require.NoError(t, err)
	require.Equal(t, 2, at(), "not the address that is at the index now")
	sys.set(hca0(map[int]string{0: "127.0.0.4", 1: "127.0.0.4", 2: "127.0.0.3"}))
	require.NoError(t, r.Move(netip.MustParsePrefix("127.0.0.3/8")))
	require.Equal(t, 2, at())
	require.NoError(t, r.Move(netip.MustParsePrefix("127.0.0.4/8")))
	require.Equal(t, 1, at(), "of two the one that was asked for")
}

// The address of an endpoint is replaced before its connection: the index is empty, or another address's. Connect says so. At an index that still
// has it, it connects.
func TestConnectFromLostGID(t *testing.T) {
	lib := imitation.Build(t)
	o := options(t, lib, true)
	sys := &changingSys{}
	const own = "127.0.0.1"
	sys.set(hca0(map[int]string{0: own}))
	o.Sys = sys
	a, b := newSide(t, o), newSide(t, o)
	for name, c := range map[string]struct {
		holes int
		now   map[int]string
	}{"empty": {1, map[int]string{}}, "another": {0, map[int]string{0: "127.0.0.2"}}, "moved": {0, map[int]string{0: "127.0.0.2", 1: own}}} {
		sys.set(hca0(map[int]string{0: own}))
		lib.Set("gid_holes", 0)
		x, err := a.rail.OpenEndpoint()
		require.NoError(t, err)
		y, err := b.rail.OpenEndpoint()
		require.NoError(t, err)
		sys.set(hca0(c.now))
		lib.Set("gid_holes", c.holes)
		err = x.Connect(y.Addr())
		require.ErrorIs(t, err, provider.ErrBadAddress, name)
		require.ErrorIs(t, err, syscall.EADDRNOTAVAIL, name)
		require.ErrorContains(t, err, "connect from 127.0.0.1, which is not at index 0 of the GID table any more, to 127.0.0.1", name)
		require.NoError(t, x.Close())
		require.NoError(t, y.Close())
	}
	sys.set(hca0(map[int]string{0: own, 1: "127.0.0.2"}))
	lib.Set("gid_holes", 0)
	link(a, b)
}
