package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"gorail/nixlapi"
	"gorail/test/skip"
	"gorail/test/testenv"
	"gorail/test/walls"
	"gorail/test/worker"
)

// podFolder is where pods mount the folder of their node in which agents meet.
const podFolder = "/run/gorail"

// node stands for a machine of a cluster. Its pods share a folder of the node and a network that no other node reaches.
type node struct {
	t      testing.TB
	folder string // of the node: a hostPath volume
	bridge *host  // the node's network namespace
	pods   int
}

// pod is a sandbox on a node: a network namespace. Each process that starts in it is a container with all other namespaces of its own.
type pod struct {
	*host
	walls.Container
}

// newNode makes a node. Its folder is of root, as DirectoryOrCreate makes it.
func newNode(t testing.TB) *node {
	t.Helper()
	ours(t)
	n := &node{t: t, bridge: newHost(t)}
	skip.OrFail(t, (&walls.Container{}).Possible())
	n.folder = n.dir("gorail", 0o755)
	skip.OrFail(t, n.bridge.NL.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "pods0"}}))
	require.NoError(t, n.bridge.NL.LinkSetUp(n.bridge.Link("pods0")))
	return n
}

// dir makes a folder of the node that other users can reach.
func (n *node) dir(name string, mode os.FileMode) (at string) {
	n.t.Helper()
	top := n.t.TempDir()
	require.NoError(n.t, os.Chmod(filepath.Dir(top), 0o755))
	require.NoError(n.t, os.Chmod(top, 0o755))
	at = filepath.Join(top, name)
	require.NoError(n.t, os.Mkdir(at, 0o755))
	require.NoError(n.t, os.Chmod(at, mode))
	return at
}

// pod makes a pod with the node's folder.
func (n *node) pod() *pod {
	n.t.Helper()
	p := &pod{host: newHost(n.t)}
	n.pods++
	name, addr := fmt.Sprint("pod", n.pods), &net.IPNet{IP: net.IPv4(10, 88, 0, byte(n.pods)), Mask: net.CIDRMask(24, 32)}
	p.Container = walls.Container{Name: name, Mounts: []walls.Mount{{Host: n.folder, At: podFolder}}}
	b := n.bridge
	require.NoError(n.t, b.NL.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: b.Link("pods0").Attrs().Index}, PeerName: "eth0",
		PeerNamespace: netlink.NsFd(p.NS)}))
	require.NoError(n.t, b.NL.LinkSetUp(b.Link(name)))
	p.Up("eth0", addr)
	require.True(n.t, worker.Eventually(lost, func() bool { return b.Carries(name) && p.Carries("eth0") }), "%s does not come up", name)
	return p
}

// beside is another container of a pod: both have one network namespace.
func (p *pod) beside() *pod {
	q := *p
	q.Name, q.Mounts = p.Name+"-2", slices.Clone(p.Mounts)
	return &q
}

// worker starts a process in a container of its own.
func (p *pod) worker(o worker.Options) (w *worker.Worker) {
	p.T.Helper()
	p.place(&o.Setenv, func() { o.Attr = p.Attr(); w = worker.Start(p.T, o) })
	return w
}

// place runs f where processes start that enter the container by setenv.
func (p *pod) place(setenv *[]string, f func()) {
	p.T.Helper()
	*setenv = append([]string{p.Setenv(), "HOME=/"}, *setenv...)
	p.In(func() {
		if u := p.Users; u != nil && u.Rootless {
			require.NoError(p.T, walls.DropRoot(u.Root))
		}
		f()
	})
}

// start makes a process with one agent in a container of its own.
func (p *pod) start(name string, opts ...option) *worker.Agent {
	p.T.Helper()
	return p.startWith(nil, name, opts...)
}

// startWith is start with environment variables.
func (p *pod) startWith(setenv []string, name string, opts ...option) *worker.Agent {
	p.T.Helper()
	env := testenv.Need(p.T)
	return agent(p.worker(worker.Options{Env: env, Setenv: append(autoProvider[:len(autoProvider):len(autoProvider)], setenv...)}), env, name, opts...)
}

// sees mounts a folder of the test at its own path, for files that the test reads or writes.
func (p *pod) sees(dir string) *pod {
	p.Mounts = append(p.Mounts, walls.Mount{Host: dir, At: dir})
	return p
}

// files are the names in the node's folder. Those of stats_socket are not ours to judge: the next engine of that user removes them.
func (n *node) files() (names []string) {
	n.t.Helper()
	list, err := os.ReadDir(n.folder)
	require.NoError(n.t, err)
	for _, f := range list {
		if !strings.HasPrefix(f.Name(), "stats-") {
			names = append(names, f.Name())
		}
	}
	return names
}

// envWalls lets the tests of agents on one host run between pods: every process that start makes is a pod of its own. "pods":
// all walls; "containers": all but the network namespace.
const envWalls = "GORAIL_TEST_WALLS"

// nodes are the nodes of such tests.
var nodes struct {
	sync.Mutex
	by map[string]*node
	of map[string]*pod // with "containers": the pod of all
}

// podOf makes a pod for a test; nil without envWalls. A subtest shares the node of the test around it.
func podOf(t testing.TB) *pod {
	t.Helper()
	kind := os.Getenv(envWalls)
	if kind == "" {
		return nil
	}
	nodes.Lock()
	defer nodes.Unlock()
	if nodes.by == nil {
		nodes.by, nodes.of = map[string]*node{}, map[string]*pod{}
	}
	name := t.Name()
	for at := name; nodes.by[name] == nil; {
		i := strings.LastIndexByte(at, '/')
		if i < 0 {
			break
		}
		if at = at[:i]; nodes.by[at] != nil {
			name = at
		}
	}
	if nodes.by[name] == nil {
		nodes.by[name] = newNode(t)
		t.Cleanup(func() {
			nodes.Lock()
			defer nodes.Unlock()
			delete(nodes.by, name)
			delete(nodes.of, name)
		})
	}
	n := *nodes.by[name]
	defer func() { nodes.by[name].pods = n.pods }()
	n.t = t                            // what follows ends with the test that asked
	files := filepath.Dir(t.TempDir()) // of all that the test makes there
	require.NoError(t, os.Chmod(files, 0o755))
	if kind != "containers" {
		return n.pod().sees(files)
	}
	if nodes.of[name] == nil {
		n.t = nodes.by[name].t
		nodes.of[name] = n.pod()
	}
	return nodes.of[name].beside().sees(files)
}

// told is the time within which an engine reports a killed peer of its node.
var told = testenv.Patient(2 * time.Second)

// podPair is two pods with an agent each, which have moved bytes.
func podPair(t *testing.T, n *node) (pa, pb *pod, alice, bob *worker.Agent, a, b *worker.Buf) {
	t.Helper()
	pa, pb = n.pod(), n.pod()
	alice, bob = pa.start("alice"), pb.start("bob")
	bob.Polling(true)
	size := uint64(rounds(16, 64)) << 20
	a, b = alice.Buffer(size, seedA), bob.Buffer(size, seedB)
	alice.Learn(bob)
	alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
	b.Want(seedA)
	requireWay(t, alice, "bob", wayRing)
	return pa, pb, alice, bob, a, b
}

// TestPodKilled: a pod's process gets SIGKILL while transfers are in flight, as initiator or as target. Its peer is told within two
// seconds, and removes what the process left in the folder.
func TestPodKilled(t *testing.T) {
	t.Parallel()
	for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
		t.Run("target/"+op.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			_, _, alice, bob, a, b := podPair(t, n)
			x := alice.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("k")})
			loop := x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
			require.NotEmpty(t, bob.WaitNotifs(3, limit))
			bob.Kill()
			began := time.Now()
			require.True(t, loop.Wait().Status.Failed())
			require.Less(t, time.Since(began), told)
			expectLost(t, alice, x)
			if x.Release() != nil {
				require.NoError(t, x.Release())
			}
			require.NoError(t, alice.Exit())
			require.Empty(t, n.files())
		})
		t.Run("initiator/"+op.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			_, _, alice, bob, a, b := podPair(t, n)
			bob.Learn(alice)
			back := bob.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: b.Span(0, 4096), Remote: a.Span(0, 4096), Peer: "alice"})
			back.Do(limit)
			x := alice.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("k")})
			x.LoopAsync(worker.LoopArgs{N: 1 << 20, Timeout: limit})
			require.NotEmpty(t, bob.WaitNotifs(3, limit))
			alice.Kill()
			began := time.Now()
			require.True(t, worker.Eventually(lost, func() bool {
				s := back.Try(lost)
				return s.Failed()
			}))
			require.Less(t, time.Since(began), told)
			b.Fill(seedC) // nobody writes there any more
			release(t, back)
			b.Want(seedC)
			require.NoError(t, bob.Exit())
			require.Empty(t, n.files())
		})
	}
}

// TestPodsBothKilled: both processes get SIGKILL. What they leave in the folder goes with the next engine of their user.
func TestPodsBothKilled(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	pa, pb, alice, bob, _, _ := podPair(t, n)
	alice.Kill()
	bob.Kill()
	alice, bob = pa.start("alice"), pb.start("bob")
	small(t, alice, bob)
	requireWay(t, alice, "bob", wayRing)
	exit(t, alice, bob)
	require.Empty(t, n.files())
}
