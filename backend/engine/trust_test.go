package engine

import (
	"context"
	"crypto/tls"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/session"
	"gorail/backend/transfer"
	"gorail/backend/trust"
	"gorail/backend/wire"
	"gorail/internal/pattern"
	"gorail/test/fake"
)

// With strict_names, only the engine of the loaded metadata may use a name. Other names are free.
func TestStrictNames(t *testing.T) {
	t.Parallel()
	h := onFake(t, placing())
	b := h.agent("bob", "strict_names", "on")
	ann, other, carol := h.agent("ann"), h.agent("ann"), h.agent("carol")
	require.NoError(t, b.LoadConn("ann", ann.Conn()))
	theirs := b.memory(4096)
	write := func(a *agent) *request {
		require.NoError(t, a.LoadConn("bob", b.Conn()))
		return a.whole(transfer.Write, a.memory(4096), theirs.seenBy(a)).post()
	}
	require.Equal(t, done, write(ann).wait())
	require.Equal(t, done, write(carol).wait())
	write(other).fails(errcode.ErrBackend)
	require.True(t, h.log.has("strict_names"))
	require.NoError(t, b.LoadConn("ann", other.Conn()))
	require.Equal(t, done, write(other).wait(), "its metadata is the newer one")
}

// Metadata that cannot work with our options is refused when it is loaded, with the option's name, and not as unsupported:
// the agent would take another backend in silence.
func TestLoadChecksTrust(t *testing.T) {
	t.Parallel()
	h := onFake(t, placing())
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(strings.Repeat("s", 40)), 0o600))
	plain, proved := h.agent("plain"), h.agent("proved", "secret_file", secret)
	for _, c := range []struct {
		here, there *agent
		option      string
	}{{plain, proved, "secret_file"}, {proved, plain, "secret_file"}} {
		err := c.here.LoadConn(c.there.name, c.there.Conn())
		require.Equal(t, errcode.ErrMismatch, errcode.StatusOf(err))
		require.ErrorContains(t, err, c.option)
	}
	again := h.agent("again", "secret_file", secret)
	require.NoError(t, again.LoadConn("proved", proved.Conn()))
	again.whole(transfer.Write, again.memory(64), proved.memory(64).seenBy(again)).run()
}

// Devices that cannot encrypt are refused with encryption=on, unless their network is trusted. Shared memory never leaves the host.
func TestDevicesInClear(t *testing.T) {
	t.Parallel()
	verbs, efa := provider.Device{Fabric: "verbs", Name: "mlx5_0"}, provider.Device{Fabric: "efa", Name: "rdmap0"}
	tcp, here := provider.Device{Fabric: "tcp", Name: "eth0", Encrypts: true}, provider.Device{Fabric: "sm", Name: "memory", Host: true}
	for name, c := range map[string]struct {
		params map[string]string
		found  []provider.Device
		says   string
	}{
		"off":          {nil, []provider.Device{verbs, here}, ""},
		"tcp":          {map[string]string{"encryption": "on"}, []provider.Device{tcp, here}, ""},
		"verbs":        {map[string]string{"encryption": "on"}, []provider.Device{verbs, here}, "verbs/mlx5_0"},
		"all":          {map[string]string{"encryption": "on"}, []provider.Device{tcp, efa, verbs, here}, "efa/rdmap0, verbs/mlx5_0"},
		"trusted":      {map[string]string{"encryption": "on", "rdma": "trusted"}, []provider.Device{tcp, efa, verbs, here}, ""},
		"trusted, off": {map[string]string{"rdma": "trusted"}, []provider.Device{verbs}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o, _, err := option.Parse(c.params, nil)
			require.NoError(t, err)
			err = inClear(&o, c.found)
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, provider.ErrUnusable)
			for _, part := range []string{c.says + ";", "encryption=on", "provider=tcp,sm", "rdma=trusted"} {
				require.ErrorContains(t, err, part)
			}
		})
	}
}

// With encryption of data the control channel's keys resist quantum computers, too.
func TestPostQuantumControl(t *testing.T) {
	t.Parallel()
	for quantum, want := range map[bool]tls.CurveID{true: tls.X25519MLKEM768, false: tls.X25519} {
		var keys [2]*trust.Key
		for i := range keys {
			k, err := trust.NewKey()
			require.NoError(t, err)
			k.PostQuantum = quantum
			keys[i] = k
		}
		a, b := net.Pipe()
		client, server := tls.Client(a, keys[0].Client(keys[1].Pin)), tls.Server(b, keys[1].Server())
		done := make(chan error, 1)
		go func() { done <- server.HandshakeContext(context.Background()) }()
		require.NoError(t, client.HandshakeContext(context.Background()))
		require.NoError(t, <-done)
		require.Equal(t, want, client.ConnectionState().CurveID)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
}

// onSecured runs body on fabrics that refuse a Connect without Secure, and on which the ends of a link talk only if they
// have the same secret.
func onSecured(t *testing.T, body func(h *harness)) {
	sideBySide(t, body, map[string]func(t testing.TB) *harness{
		"one link":  func(t testing.TB) *harness { return onFake(t, fake.SecuredCaps()) },
		"two links": func(t testing.TB) *harness { return onLinks(t, 2, fake.SecuredCaps()) },
		"two rails": func(t testing.TB) *harness { return onRails(t, 2, fake.SecuredCaps()) },
	})
}

// keySalt is the salt of keys of the engine's session with an initiator.
func (a *agent) keySalt(initiator string) [16]byte {
	a.t.Helper()
	for _, t := range a.targets.All() {
		if t.In().Agent() == initiator {
			return t.In().KeySalt()
		}
	}
	a.t.Fatal("no session of ", initiator)
	return [16]byte{}
}

// moves moves bytes both ways, over memory that was registered before and over memory that is registered now.
func (p *pair) moves(round uint64) {
	p.a.t.Helper()
	for op := range 2 {
		p.mine.fill(round)
		p.theirs.fill(round + 1000)
		p.a.whole(op, p.mine, p.theirs).run("n")
		p.b.expect("ann:n")
		p.same()
		mine, theirs := p.a.memory(8192).fill(round), p.b.memory(8192).fill(round+1).seenBy(p.a)
		p.a.whole(op, mine, theirs).run()
		pattern.Same(p.a.t, mine.b, theirs.b)
	}
}

// Both ends of each link have the same secret: at first, after fences of either side with transfers in flight, after the
// control session is resumed, after a reconnect, and after a restart of the peer.
func TestSecured(t *testing.T) {
	t.Parallel()
	onSecured(t, func(h *harness) {
		a, b := h.agent("ann"), h.agent("bob")
		g := h.gate(b)
		g.open(true)
		require.NoError(h, a.LoadConn("bob", g.blob))
		p := &pair{a, b, a.memory(1 << 20), b.memory(1 << 20).seenBy(a)}
		p.moves(1)
		r := a.connected("bob")
		links := len(r.links())
		fences := func(round uint64) {
			x := a.whole(transfer.Write, p.mine.fill(round), p.theirs)
			b.rail().Stall()
			x.post("replayed")
			r.fenceAll("a test")
			b.rail().Release()
			require.Equal(h, done, x.wait())
			b.expect("ann:replayed")
			p.same()
			for i, end := range []*agent{a, b} { // b sends only credits
				h.failAt(end, 1)
				p.moves(round + uint64(i))
			}
			until(h, "all links work", func() bool { return r.atWork() == links })
		}
		fences(10)

		secret, resumed := b.keySalt("ann"), b.node.Stats().Resumed
		g.cut()
		until(h, "the control session is resumed", func() bool { return b.node.Stats().Resumed > resumed && r.ready() })
		require.Equal(h, secret, b.keySalt("ann"))
		p.moves(20)
		fences(30)

		r.fail("a test")
		p.moves(40)
		require.NotEqual(h, secret, b.keySalt("ann"))

		g.end()
		require.NoError(h, b.Close())
		p.b = h.agent("bob")
		require.NoError(h, a.LoadConn("bob", p.b.Conn()))
		p.theirs = p.b.memory(1 << 20).seenBy(a)
		p.moves(50)
		require.Equal(h, links, a.connected("bob").count(func(l *session.Link) bool { return l.Up }))
	})
}

// Each session has keys of its own. Another session's key opens nothing.
func TestKeysOfSessions(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprint("provider keys ", own), func(t *testing.T) {
			t.Parallel()
			caps := fake.SecuredCaps()
			caps.ProviderKeys = own
			h := onFake(t, caps)
			p := h.pair(1 << 20)
			p.moves(1)
			carol := h.agent("carol")
			require.NoError(t, carol.LoadConn("bob", p.b.Conn()))
			carol.whole(transfer.Write, carol.memory(4096), p.theirs.seenBy(carol)).run()

			there := p.b.regions.Regions.Get(p.theirs.owned())
			keyOf := func(initiator string) core.Key {
				k := p.b.regions.RailKeys(there, p.b.keySalt(initiator))[0]
				return core.Key{Key: k.Key, Base: k.Base}
			}
			require.NotEqual(t, keyOf("ann"), keyOf("carol"))
			here, before := p.a.regions.Regions.Get(p.theirs.md.region), string(p.theirs.b)
			x := p.a.whole(transfer.Write, p.mine.fill(2), p.theirs)
			here.Core.SetKey(0, keyOf("carol"))
			x.post().fails(errcode.ErrBackend)
			require.True(t, before == string(p.theirs.b))
			here.Core.SetKey(0, keyOf("ann"))
			x.run()
			p.same()
		})
	}
}

// Metadata of another wire version is refused at load with NIXL_ERR_MISMATCH, and counted.
func TestAnotherVersion(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a, b := h.agent("ann"), h.agent("bob")
	conn := append([]byte{}, b.Conn()...)
	conn[3] = wire.Version + 1
	body := conn[:len(conn)-4]
	sum := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
	conn = append(body, byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum))
	for range 2 {
		err := a.LoadConn("bob", conn)
		require.Equal(t, errcode.ErrMismatch, errcode.StatusOf(err))
		require.ErrorContains(t, err, "version mismatch: install the same GORAIL on both sides")
	}
	require.EqualValues(t, 2, a.snapshot().PeersRefusedVersion)
	require.NoError(t, a.LoadConn("bob", b.Conn()))
	require.EqualValues(t, 2, a.snapshot().PeersRefusedVersion)
}

// Eight initiators have one name, as nixlbench calls all of them. Each is served, and its notifications arrive in order.
func TestOneNameForMany(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		const initiators, rounds = 8, 20
		b := h.agent("bob")
		theirs := b.memory(initiators * 4096)
		var all []*agent
		for i := range initiators {
			a := h.agent("initiator")
			require.NoError(h, a.LoadConn("bob", b.Conn()))
			all = append(all, a)
			mine, seen := a.memory(4096).fill(uint64(i)), theirs.seenBy(a)
			for n := range rounds {
				x := a.prep(transfer.Write, []Desc{mine.desc(0, 4096)}, []Desc{seen.desc(i*4096, 4096)}, "bob")
				x.run(fmt.Sprintf("%d %02d", i, n))
				x.release()
			}
			require.Equal(h, string(mine.b), string(theirs.b[i*4096:(i+1)*4096]))
		}
		next := make([]int, initiators)
		until(h, "all notifications arrive", func() bool { return len(b.take()) >= initiators*rounds })
		for _, text := range b.got {
			var i, n int
			_, err := fmt.Sscanf(text, "initiator:%d %d", &i, &n)
			require.NoError(h, err)
			require.Equal(h, next[i], n, "order of the notifications of engine %d", i)
			next[i]++
		}
		require.EqualValues(h, initiators-1, b.snapshot().NameConflicts)
		require.Equal(h, 1, h.log.count("two engines use one agent name"))
		for _, a := range all {
			require.NoError(h, a.Close())
		}
	})
}

// An impostor under the name of a peer begins sessions, ends them and falls silent. No transfer of the peer notices.
func TestImpostorUnderAName(t *testing.T) {
	t.Parallel()
	h := onFake(t, placing())
	p := h.pair(1 << 20)
	p.a.whole(transfer.Write, p.mine, p.theirs).run()
	dialed := p.a.node.Stats().Dialed
	to, offers := p.b.conn(), h.offer(p.b, 1)
	for n := range 20 {
		x := p.a.whole(n%2, p.mine.fill(uint64(n)), p.theirs.fill(99)).post("mine")
		c := sayHelloAs("ann", to, strangerKey(n%3), uint64(1+n), offers)
		require.NotNil(t, c)
		if n >= 3 { // the first ones hang up at once
			f, err := wire.ReadFrame(c, 0)
			require.NoError(t, err)
			require.IsType(t, &wire.Welcome{}, f)
		}
		switch n % 3 {
		case 0:
			require.NoError(t, wire.WriteFrame(c, &wire.Bye{Text: "gone", Gone: true}))
		case 1:
			require.NoError(t, wire.WriteFrame(c, &wire.Drain{Next: 1000}))
		}
		require.Equal(t, done, x.wait())
		p.same()
		p.b.expect("ann:mine")
		x.release()
		c.Close()
	}
	require.Equal(t, dialed, p.a.node.Stats().Dialed, "the session stayed")
	require.Positive(t, p.b.snapshot().NameConflicts)
}
