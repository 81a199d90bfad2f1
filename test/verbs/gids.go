package verbs

import (
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"sync"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// GIDs are the GID tables of a library's devices, with one port each. As an fs.FS they are a /sys. Packets pass between two queue pairs while both
// devices have their addresses.
type GIDs struct {
	lib *Lib
	mu  sync.Mutex
	sys fstest.MapFS // replaced by each change
}

// GIDs returns the tables, without entries. From the first entry on, the library knows no other GIDs.
func (l *Lib) GIDs() *GIDs { return &GIDs{lib: l, sys: fstest.MapFS{}} }

// Open implements fs.FS.
func (g *GIDs) Open(name string) (fs.File, error) {
	g.mu.Lock()
	sys := g.sys
	g.mu.Unlock()
	return sys.Open(name)
}

// Set enters an interface's address into a device's table, as RoCE v2; the zero Addr leaves the entry empty.
func (g *GIDs) Set(device, index int, addr netip.Addr, net string) {
	g.lib.T.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	var gid [16]byte
	sys, dir, entry := maps.Clone(g.sys), fmt.Sprintf("class/infiniband/hca%d/ports/1/", device), fmt.Sprint(index)
	for _, file := range []string{"gids/", "gid_attrs/types/", "gid_attrs/ndevs/"} {
		delete(sys, dir+file+entry)
	}
	if addr.IsValid() {
		gid = addr.As16()
		sys[dir+"gids/"+entry] = &fstest.MapFile{Data: []byte(netip.AddrFrom16(gid).StringExpanded() + "\n")}
		sys[dir+"gid_attrs/types/"+entry] = &fstest.MapFile{Data: []byte("RoCE v2\n")}
		sys[dir+"gid_attrs/ndevs/"+entry] = &fstest.MapFile{Data: []byte(net + "\n")}
	}
	g.sys = sys
	require.Zero(g.lib.T, setGID(g.lib, device, index, gid), "hca%d has no entry %d", device, index)
}
