package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/skip"
	"gorail/test/walls"
	"gorail/test/worker"
)

// The ways of DRAM between two agents of a host: docs/one-host.md.
const (
	wayTCP    = "tcp"
	wayDirect = "direct"
	wayRing   = "ring"
)

// requireWay requires that an agent's DRAM goes to a peer by this way, as the agent's log says.
func requireWay(t *testing.T, a *worker.Agent, peer, way string) {
	t.Helper()
	line := says(t, a.Worker, `msg="peer connected"`, "agent="+a.Name, "peer="+peer, "session=initiator")
	switch way {
	case wayTCP:
		require.Contains(t, line, "DRAM:tcp/", "%s", a.Output())
	case wayRing:
		require.Contains(t, line, "DRAM:sm/memory by ring, mapped where it is a shared memory file (", "%s", a.Output())
	case wayDirect:
		require.Regexp(t, `DRAM:sm/memory( VRAM|"? session)`, line, "%s", a.Output())
	}
}

// exchange moves verified bytes and notifications both ways: WRITE and READ, sizes from 1 B to 6 MiB (64 MiB in the long form) at odd offsets, a scattered list,
// and many transfers in flight. In the short form the second agent posts fewer sizes.
func exchange(t *testing.T, alice, bob *worker.Agent) {
	t.Helper()
	exchangeOf(t, hostmem.Anon, alice, bob)
}

// exchangeOf is exchange with a kind of memory. It returns the buffers.
func exchangeOf(t *testing.T, kind hostmem.Kind, alice, bob *worker.Agent) (a, b *worker.Buf) {
	t.Helper()
	const block, many = 64 << 10, 64
	large := uint64(rounds(6<<20, 64<<20))
	size := large + 4096
	a, b = alice.BufferOf(kind, size, seedA), bob.BufferOf(kind, size, seedB)
	alice.Learn(bob)
	bob.Learn(alice)
	for _, d := range []struct {
		from, to     *worker.Agent
		here, there  *worker.Buf
		mine, theirs uint64
	}{{alice, bob, a, b, seedA, seedB}, {bob, alice, b, a, seedB, seedA}} {
		d.to.Polling(true)
		for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
			from, to, seed, was := d.here, d.there, d.mine, d.theirs
			if op == nixlapi.Read {
				from, to, seed, was = to, from, was, seed
			}
			move := func(note string, here, there worker.Layout) {
				from.Fill(seed)
				to.Fill(was)
				x := d.from.Xfer(worker.XferSpec{Op: op, Local: d.here.At(here), Remote: d.there.At(there), Peer: d.to.Name, Notif: []byte(note)})
				x.Do(long)
				require.Equal(t, []nixlapi.Notif{{From: d.from.Name, Msg: []byte(note)}}, d.to.WaitNotifs(1, limit))
				lf, lt := here, there
				if op == nixlapi.Read {
					lf, lt = there, here
				}
				to.WantBlocks(was, lt, seed, lf)
				from.Want(seed)
				release(t, x)
			}
			sizes := []uint64{1, 7, 4095, 4096, 65537, 1<<20 + 3, large}
			if testing.Short() && d.from == bob {
				sizes = []uint64{7, 4096, 1<<20 + 3}
			}
			for i, n := range sizes {
				move(fmt.Sprint(op, n), worker.Span(uint64(13+i), n), worker.Span(uint64(1001+3*i), n))
			}
			move("scattered", scattered(7, 4096, 100, 1000, 1), scattered(9, 4096, 300, 1000, 2))
			from.Fill(seed)
			to.Fill(was)
			var all []*worker.Xfer
			for i := range uint64(many) {
				all = append(all, d.from.Xfer(worker.XferSpec{Op: op, Local: d.here.Span(i*block, block), Remote: d.there.Span(i*block, block), Peer: d.to.Name,
					Notif: worker.Seq("m", int(i))}))
			}
			for _, x := range all {
				require.False(t, x.Post().Failed())
			}
			for _, x := range all {
				require.Equal(t, nixlapi.Success, x.Wait(limit))
				release(t, x)
			}
			require.Len(t, d.to.WaitNotifs(many, limit), many)
			require.EqualValues(t, -1, to.Diff(0, many*block, seed, 0))
			require.EqualValues(t, -1, to.Diff(many*block, size-many*block, was, many*block))
		}
		d.to.Polling(false)
	}
	return a, b
}

// pidsInside are a process's numbers, in our pid namespace first.
func pidsInside(t *testing.T, w *worker.Worker) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.Pid()))
	require.NoError(t, err)
	return strings.Join(strings.Fields(regexp.MustCompile(`(?m)^NSpid:(.*)$`).FindStringSubmatch(string(text))[1]), " ")
}

// combination is which walls two pods have, and what rail sm makes of them.
type combination struct {
	name  string
	mode  os.FileMode // of the node's folder
	first func(p *pod)
	other func(p *pod)
	alone bool     // both are containers of one pod
	set   []string // environment variables of both
	way   string
	why   []string
}

func users(u *walls.Users) func(p *pod) { return func(p *pod) { p.Users = u } }
func uid(n int) func(p *pod)            { return func(p *pod) { p.UID = n } }

var sticky = 0o777 | os.ModeSticky

var combinations = []combination{
	{name: "all walls", mode: 0o755, way: wayRing},
	{name: "containers of a pod", mode: 0o755, alone: true, way: wayRing},
	{name: "seccomp", mode: 0o755, set: []string{envLimit + "=" + seccomp}, way: wayRing},
	{name: "ordinary user", mode: sticky, first: uid(honest), other: uid(honest), way: wayRing},
	{name: "one user's namespaces", mode: sticky, first: users(&walls.Users{Root: honest}), other: users(&walls.Users{Root: honest}), way: wayRing},
	{name: "rootless", mode: sticky, first: users(&walls.Users{Root: honest, Rootless: true}), other: users(&walls.Users{Root: honest, Rootless: true}), way: wayRing},
	{name: "other user", mode: sticky, first: uid(honest), other: uid(stranger), way: wayTCP, why: []string{"level=WARN", "peer=bob", "user", "local_peers"}},
	{name: "other user, any-with-token", mode: sticky, first: uid(honest), other: uid(stranger), set: []string{"GORAIL_LOCAL_PEERS=any-with-token"}, way: wayRing},
	{name: "other user's namespace", mode: sticky, first: users(&walls.Users{Root: honest}), other: users(&walls.Users{Root: stranger}), way: wayTCP,
		why: []string{"level=WARN", "peer=bob", "user", "local_peers"}},
	{name: "other user's namespace, any-with-token", mode: sticky, first: users(&walls.Users{Root: honest}), other: users(&walls.Users{Root: stranger}),
		set: []string{"GORAIL_LOCAL_PEERS=any-with-token"}, way: wayRing},
	{name: "rootless, other user, any-with-token", mode: sticky, first: users(&walls.Users{Root: honest, Rootless: true}), other: users(&walls.Users{Root: stranger, Rootless: true}),
		set: []string{"GORAIL_LOCAL_PEERS=any-with-token"}, way: wayRing},
}

// TestPods: between two pods of a node, with each combination of walls, bytes and notifications go by the way of docs/one-host.md, and nothing stays in the
// folder.
func TestPods(t *testing.T) {
	t.Parallel()
	for _, c := range combinations {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			require.NoError(t, os.Chmod(n.folder, c.mode))
			a := n.pod()
			b := a.beside()
			if !c.alone {
				b = n.pod()
			}
			if c.first != nil {
				c.first(a)
				c.other(b)
			}
			skip.OrFail(t, errors.Join(a.Possible(), b.Possible()))
			alice, bob := a.startWith(c.set, "alice"), b.startWith(c.set, "bob")
			require.Regexp(t, ` 1$`, pidsInside(t, alice.Worker))
			require.Regexp(t, ` 1$`, pidsInside(t, bob.Worker))
			exchange(t, alice, bob)
			requireWay(t, alice, "bob", c.way)
			requireWay(t, bob, "alice", c.way)
			if c.why != nil {
				says(t, alice.Worker, c.why...)
			}
			exit(t, alice, bob)
			require.Empty(t, n.files())
		})
	}
}

// small moves 1 MiB from alice to bob, which both load.
func small(t *testing.T, alice, bob *worker.Agent) {
	t.Helper()
	bob.Polling(true)
	a, b := alice.Buffer(1<<20, seedA), bob.Buffer(1<<20, seedB)
	alice.Learn(bob)
	x := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
	x.Do(limit)
	require.Len(t, bob.WaitNotifs(1, limit), 1)
	b.Want(seedA)
	release(t, x)
}

// TestPodsFolder: what a folder can lack. Bytes then go by tcp, and a warning says why and what helps.
func TestPodsFolder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		make func(n *node, a, b *pod)
		way  string
		why  []string
	}{
		{"absent", func(_ *node, a, b *pod) { a.Mounts, b.Mounts = nil, nil }, wayTCP, []string{"level=WARN", "peer=bob", podFolder, "mount"}},
		{"absent at the peer", func(_ *node, _, b *pod) { b.Mounts = nil }, wayTCP, []string{"level=WARN", "peer=bob", podFolder, "mount"}},
		{"another", func(n *node, _, b *pod) { b.Mounts[0].Host = n.dir("other", 0o755) }, wayTCP, []string{"peer=bob", podFolder, "do both mount the same folder of the host?"}},
		{"read-only", func(_ *node, a, b *pod) { a.Mounts[0].ReadOnly, b.Mounts[0].ReadOnly = true, true }, wayTCP, []string{podFolder, "read-only"}},
		{"full", func(_ *node, a, _ *pod) { a.Mounts[0].Full = true }, wayTCP, []string{"level=WARN", podFolder, "full: remove files there"}},
		{"not sticky", func(n *node, _, _ *pod) { require.NoError(n.t, os.Chmod(n.folder, 0o777)) }, wayTCP, []string{podFolder, "chmod +t"}},
		{"another user's", func(n *node, _, _ *pod) { require.NoError(n.t, os.Chown(n.folder, stranger, stranger)) }, wayTCP, []string{podFolder, "belongs to user"}},
		{"sticky", func(n *node, _, _ *pod) { require.NoError(n.t, os.Chmod(n.folder, sticky)) }, wayRing, nil},
		{"with the socket of a dead process", func(n *node, a, _ *pod) {
			a.start("carol").Kill()
			require.NotEmpty(n.t, n.files())
		}, wayRing, nil},
		{"with files of others", func(n *node, _, _ *pod) {
			require.NoError(n.t, os.WriteFile(filepath.Join(n.folder, "notes"), []byte("theirs"), 0o644))
		}, wayRing, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			a, b := n.pod(), n.pod()
			c.make(n, a, b)
			alice, bob := a.start("alice"), b.start("bob")
			small(t, alice, bob)
			requireWay(t, alice, "bob", c.way)
			if c.why != nil {
				says(t, alice.Worker, c.why...)
			}
			exit(t, alice, bob)
			for _, name := range n.files() {
				require.Equal(t, "notes", name)
			}
		})
	}
}

// mappedBytes are the bytes of an engine's transfers that went through mappings of peers' memory, as its stats_file says.
func mappedBytes(t *testing.T, file string) (n uint64) {
	t.Helper()
	s := snapshot(t, file)
	for _, r := range s.Rails {
		n += r.Mapped
	}
	return n
}

// sharedMappings is the number of mappings of shared memory that a process has, its own and those of peers.
func sharedMappings(t *testing.T, w *worker.Worker) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", w.Pid()))
	require.NoError(t, err)
	return strings.Count(string(text), hostmem.SharedName)
}

// TestPodsMapped: between two pods, memory that is shared memory is mapped by the peer and copied once. The mapping ends with the
// peer's registration. Files go to processes of one's own user alone.
func TestPodsMapped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		combination
		mapped bool
	}{
		{combination{name: "all walls", mode: 0o755}, true},
		{combination{name: "containers of a pod", mode: 0o755, alone: true}, true},
		{combination{name: "seccomp", mode: 0o755, set: []string{envLimit + "=" + seccomp}}, true},
		{combination{name: "ordinary user", mode: sticky, first: uid(honest), other: uid(honest)}, true},
		{combination{name: "rootless", mode: sticky, first: users(&walls.Users{Root: honest, Rootless: true}), other: users(&walls.Users{Root: honest, Rootless: true})}, true},
		{combination{name: "other user, any-with-token", mode: sticky, first: uid(honest), other: uid(stranger), set: []string{"GORAIL_LOCAL_PEERS=any-with-token"}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			require.NoError(t, os.Chmod(n.folder, c.mode))
			out := n.dir("stats", sticky)
			a := n.pod()
			b := a.beside()
			if !c.alone {
				b = n.pod()
			}
			if c.first != nil {
				c.first(a)
				c.other(b)
			}
			skip.OrFail(t, errors.Join(a.Possible(), b.Possible()))
			stat := func(name string) string { return filepath.Join(out, name) }
			start := func(p *pod, name string) *worker.Agent {
				return p.sees(out).startWith(append([]string{"GORAIL_STATS_FILE=" + stat(name)}, c.set...), name)
			}
			alice, bob := start(a, "alice"), start(b, "bob")
			bufA, bufB := exchangeOf(t, hostmem.Shared, alice, bob)
			requireWay(t, alice, "bob", wayRing)
			if c.mapped {
				require.Equal(t, 2, sharedMappings(t, alice.Worker))
				require.Equal(t, 2, sharedMappings(t, bob.Worker))
			}
			require.NoError(t, bob.Deregister(bufB.All()))
			require.True(t, worker.Eventually(limit, func() bool { return sharedMappings(t, alice.Worker) == 1 }), "the mapping stays")
			require.NoError(t, alice.Deregister(bufA.All()))
			exit(t, alice, bob)
			for _, name := range []string{"alice", "bob"} {
				if c.mapped {
					require.Greater(t, mappedBytes(t, stat(name)), uint64(4<<20))
				} else {
					require.Zero(t, mappedBytes(t, stat(name)))
				}
			}
			require.Empty(t, n.files())
		})
	}
}
