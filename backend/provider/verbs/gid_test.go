package verbs

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
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
