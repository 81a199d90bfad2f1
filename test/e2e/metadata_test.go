package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/abi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// The first bytes of GORAIL's blobs inside the agent's metadata.
var (
	connMark   = []byte("GRC")
	regionMark = []byte("GRM")
)

// reach loads good metadata and transfers. It shows that bad metadata loaded before has no effect any more.
func (p *pairOf) reach(t *testing.T, a, b *worker.Buf) {
	t.Helper()
	forget(t, p.ini, "bob")
	b.Fill(seedB)
	p.ini.Learn(p.tgt)
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")}).Do(limit)
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	b.Want(seedA)
}

// TestCorruptMetadata changes bytes of the backend's blobs in the metadata.
func TestCorruptMetadata(t *testing.T) {
	t.Parallel()
	ours(t)
	p := pair(t)
	a, b := p.ini.Buffer(1<<20, seedA), p.tgt.Buffer(1<<20, seedB)
	good := p.tgt.Metadata()
	for _, mark := range [][]byte{connMark, regionMark} {
		at := bytes.Index(good, mark)
		require.Positive(t, at, "%q is not in the metadata %q", mark, good)
		for _, off := range []int{0, 2, 3, 5, 9, 20, 30} { // head, version, body
			bad := bytes.Clone(good)
			bad[at+off] ^= 0x41
			_, err := p.ini.Load(bad)
			require.Error(t, err, "%q, byte %d", mark, off)
			forget(t, p.ini, "bob")
		}
		what := map[byte]string{'C': "connection blob", 'M': "region blob"}[mark[2]]
		says(t, p.ini.Worker, "level=ERROR", what, `"bob"`, "corrupt")
	}
	p.reach(t, a, b)
}

// TestDeadPeer: the initiator loads the metadata of a process that has ended. A post fails soon.
func TestDeadPeer(t *testing.T) {
	t.Parallel()
	ours(t)
	p := pair(t)
	a, b := p.ini.Buffer(1<<20, seedA), p.tgt.Buffer(1<<20, seedB)
	md := p.tgt.Metadata()
	p.tgt.Kill()
	_, err := p.ini.Load(md)
	require.NoError(t, err, "a load must not connect to the peer")
	x, err := p.ini.TryXfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	require.NoError(t, err)
	began := time.Now()
	expectLost(t, p.ini, x)
	require.Less(t, time.Since(began), min(testenv.Patient(2*time.Second), lost))
	says(t, p.ini.Worker, "peer lost", `"bob"`, "its process", "has ended")
	require.NoError(t, x.Release())
	p.tgt = start(t, "bob")
	p.tgt.Polling(true)
	p.reach(t, a, p.tgt.Buffer(1<<20, seedB))
}

// TestSilentPeer: a stopped peer does not answer within connect_timeout. The post fails, the peer does not count as lost,
// and the next post connects.
func TestSilentPeer(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, c := range []struct{ connect, peer, says string }{
		{"800ms", "10s", "connect_timeout"},
		{"800ms", "500ms", "connect_timeout"},
	} {
		p := pair(t, params("connect_timeout", c.connect, "peer_timeout", c.peer))
		a, b := p.ini.Buffer(1<<20, seedA), p.tgt.Buffer(1<<20, seedB)
		md := p.tgt.Metadata()
		p.tgt.Stop()
		began := time.Now()
		_, err := p.ini.Load(md)
		require.NoError(t, err, "a load must not connect to the peer")
		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
		x.Post()
		require.True(t, x.Wait(lost).Failed())
		took := time.Since(began)
		require.False(t, toldLost(p.ini))
		p.tgt.Cont()
		require.Less(t, took, min(testenv.Patient(2*time.Second), lost))
		says(t, p.ini.Worker, "peer not reached", `"bob"`, c.says)
		p.tgt.Polling(true)
		x.Do(limit)
		b.Want(seedA)
		require.NoError(t, x.Release())
	}
}

// TestRestartInitiator: an initiator is killed, or stopped, and another process starts under its name. The target serves
// it at once. A stopped process that continues finds its session as it was.
func TestRestartInitiator(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprintf("silent=%v", silent), func(t *testing.T) {
			t.Parallel()
			tgt := start(t, "bob")
			tgt.Polling(true)
			b := tgt.Buffer(1<<20, seedB)
			begin := func(seed uint64) (*worker.Agent, *worker.Xfer) {
				ini := start(t, "alice")
				a := ini.Buffer(1<<20, seed)
				ini.Learn(tgt)
				x := ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: fmt.Append(nil, seed)})
				x.Do(limit)
				b.Want(seed)
				return ini, x
			}
			old, x := begin(1)
			if silent {
				old.Stop()
			} else {
				old.Kill()
			}
			_, y := begin(2)
			want := []string{"1", "2"}
			if silent {
				old.Cont()
				x.Do(limit)
				b.Want(uint64(1))
				y.Do(limit)
				b.Want(uint64(2))
				want = append(want, "1", "2")
			}
			var got []string
			for _, n := range tgt.WaitNotifs(len(want), limit) {
				require.Equal(t, "alice", n.From)
				got = append(got, string(n.Msg))
			}
			require.ElementsMatch(t, want, got) // the order is that of each engine
		})
	}
}

// TestForeignPeer: an agent with GORAIL in place of UCX loads the metadata of an agent with the wheel's UCX. The load
// fails, and the log names the peer.
func TestForeignPeer(t *testing.T) {
	t.Parallel()
	env := ours(t)
	plugins, err := env.PluginFolder(t.TempDir(), "UCX")
	require.NoError(t, err)
	env.Backend = "UCX"
	as := func(name, plugins string) *worker.Agent {
		env := env
		env.PluginDir = plugins
		return agent(process(t, worker.Options{Env: env}), env, name)
	}
	alice, bob := as("alice", plugins), as("bob", nixlapi.PluginDir(env.WheelDir))
	alice.Buffer(1<<20, seedA)
	bob.Buffer(1<<20, seedB)
	_, err = alice.Load(bob.Metadata())
	require.Error(t, err)
	says(t, alice.Worker, "level=ERROR", `agent "bob": the peer's backend under this name is not GORAIL: it must be on both sides`)
	works(t, alice.Worker, env)
}

// wheelWith makes a copy of the wheel by symbolic links, with a changed POSIX plugin.
func wheelWith(t *testing.T, env testenv.Env, change func(p *abi.Patch)) testenv.Env {
	t.Helper()
	lib, err := nixlapi.LibDir(env.WheelDir)
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(nixlapi.BundleDir(env.WheelDir), filepath.Join(dir, filepath.Base(nixlapi.BundleDir(env.WheelDir)))))
	libs := filepath.Join(dir, filepath.Base(lib))
	require.NoError(t, os.MkdirAll(filepath.Join(libs, "plugins"), 0o755))
	found, err := filepath.Glob(filepath.Join(lib, "*.so*"))
	require.NoError(t, err)
	for _, f := range found {
		require.NoError(t, os.Symlink(f, filepath.Join(libs, filepath.Base(f))))
	}
	posix := testenv.PluginFile("POSIX")
	p, err := abi.NewPatch(filepath.Join(nixlapi.PluginDir(env.WheelDir), posix))
	require.NoError(t, err)
	defer p.Close()
	change(p)
	require.NoError(t, p.Write(filepath.Join(libs, "plugins", posix)))
	env.WheelDir = dir
	return env
}

// TestAnotherTable: NIXL's own plugins have another table of virtual functions. createBackend then fails each time, and
// the log has one ERROR. A wheel whose plugins have no symbol names gets a backend. test/abi tests each place in the
// table.
func TestAnotherTable(t *testing.T) {
	t.Parallel()
	env := ours(t)
	try := func(t *testing.T, change func(p *abi.Patch)) (*worker.Worker, testenv.Env) {
		env := wheelWith(t, env, change)
		return process(t, worker.Options{Env: env, Setenv: []string{"GORAIL_LOG=debug"}}), env
	}
	const inserted = "no GORAIL backend: "
	for name, k := range map[string]int{"first": 0, "in front of getSupportedMems": 5, "in the middle": 13, "last": 27} {
		t.Run(name, func(t *testing.T) {
			w, env := try(t, func(p *abi.Patch) { require.NoError(t, p.InsertSlot(k, "nixlBackendEngine", "nixlPosixEngine")) })
			refused(t, w, env, "alice")
			refused(t, w, env, "bob")
			says(t, w, "level=ERROR", inserted, "NIXL 1.0.0 .. 1.5.1", filepath.Join("plugins", testenv.PluginFile("POSIX")), "Use one of those releases")
			require.Equal(t, 1, strings.Count(w.Output(), inserted), w.Output())
		})
	}
	t.Run("the same", func(t *testing.T) {
		w, env := try(t, func(*abi.Patch) {})
		works(t, w, env)
		says(t, w, "level=DEBUG", "NIXL's table of backend functions", filepath.Join("plugins", testenv.PluginFile("POSIX")))
	})
	t.Run("no names", func(t *testing.T) {
		lib, err := nixlapi.LibDir(env.WheelDir)
		require.NoError(t, err)
		w, env := try(t, func(p *abi.Patch) { p.Nameless(func(string) bool { return true }) })
		works(t, w, env)
		says(t, w, "level=DEBUG", "NIXL's table of backend functions", filepath.Join(lib, "plugins", testenv.PluginFile("POSIX"))) // the targets of the symbolic links
	})
}
