package engine

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/limits"
	"gorail/backend/peer"
	"gorail/backend/transfer"
	"gorail/backend/trust"
	"gorail/backend/wire"
	"gorail/internal/procstat"
	"gorail/test/fake"
)

// foe is a hostile initiator in a session with bob, beside the honest pair.
type foe struct {
	*hostile
	*pair
	t      *testing.T
	h      *harness
	to     wire.ConnBlob
	key    *trust.Key
	offers []wire.EndpointOffer
}

// attack is one rule that a foe breaks.
type attack struct {
	name string
	do   func(m *foe)
	ends string // why the engine ends the session; "": it does not
	on   where
}

// where is the kind of endpoints that an attack is for.
type where int

const (
	exclusive where = iota + 1
	shared
)

func (w where) fits(a *agent) bool {
	return w == 0 || (w == shared) == a.rails.List[0].Can().SharedEndpoint
}

// send sends frames. An engine that has ended the session breaks the connection, which is no error here.
func (m *foe) send(frames ...wire.Frame) {
	for _, f := range frames {
		b, err := wire.AppendFrame(nil, f)
		require.NoError(m.t, err)
		_, _ = m.Write(b)
	}
}

// raw sends a frame with any body.
func (m *foe) raw(t wire.FrameType, body []byte) { m.head(t, len(body)); _, _ = m.Write(body) }

// head sends the head of a frame.
func (m *foe) head(t wire.FrameType, n int) {
	_, _ = m.Write(append(binary.BigEndian.AppendUint32(nil, uint32(n)), byte(t)))
}

// dial does a handshake up to TLS, with a key.
func (m *foe) dial(key *trust.Key) *hostile {
	c := securely(m.to, key)
	require.NotNil(m.t, c)
	m.t.Cleanup(func() { c.Close() })
	return &hostile{c, 1}
}

// refused sends a frame on a fresh connection, and requires a Reject.
func (m *foe) refused(key *trust.Key, f func(c *peer.SecureConn) wire.Frame, code wire.Code, text string) {
	m.t.Helper()
	c := m.dial(key)
	require.NoError(m.t, wire.WriteFrame(c, f(c.Conn.(*peer.SecureConn))))
	why := await[*wire.Reject](m.t, c)
	require.Equal(m.t, code, why.Code, why.Text)
	require.Contains(m.t, why.Text, text)
	c.Close()
}

// hello is a correct Hello on a connection.
func (m *foe) hello(key *trust.Key) func(c *peer.SecureConn) wire.Frame {
	return func(c *peer.SecureConn) wire.Frame {
		return &wire.Hello{Mac: trust.HelloMac(m.to.Token, c.Bind), Engine: key.Pin.Engine(), Agent: "mallory", Session: m.session, Offers: m.offers}
	}
}

// knocks begins another session, of another engine, with these offers. It ends the session again.
func (m *foe) knocks(n int, offers []wire.EndpointOffer) wire.Frame {
	m.t.Helper()
	c, f := knock(m.to, strangerKey(1000+n), 1, offers)
	require.NotNil(m.t, c, "no answer")
	if _, welcome := f.(*wire.Welcome); welcome {
		m.works()
		require.NoError(m.t, wire.WriteFrame(c, &wire.Bye{Gone: true}))
	}
	c.Close()
	return f
}

// works requires that the honest pair can do everything at once.
func (p *pair) works() {
	p.a.t.Helper()
	start := time.Now()
	for op := range 2 {
		p.mine.fill(uint64(start.UnixNano()))
		if op == transfer.Read {
			p.theirs.fill(uint64(start.UnixNano()))
		}
		x := p.a.whole(op, p.mine, p.theirs)
		x.run("honest")
		x.release()
		p.same()
	}
	p.b.expect("ann:honest", "ann:honest")
	require.Less(p.a.t, time.Since(start), 20*time.Second)
}

// packed is a KeysReq with any packed list of claims.
func packed(list []byte) []byte {
	body := append([]byte{0x82, 1, 0x59}, binary.BigEndian.AppendUint16(nil, uint16(len(list)))...)
	if len(list) < 24 {
		body = []byte{0x82, 1, 0x40 | byte(len(list))}
	}
	return append(body, list...)
}

// turn are frames that have no place inside a session.
func turn(f wire.Frame) attack {
	return attack{name: f.Type().String() + " inside the session", do: func(m *foe) { m.send(f) }, ends: "sent a frame of type " + f.Type().String()}
}

var attacks = []attack{
	turn(&wire.Challenge{Version: wire.Version}), turn(&wire.Open{Version: wire.Version}), turn(&wire.Welcome{Session: 1}), turn(&wire.Keys{ID: 1}),
	turn(&wire.Revoke{ID: 1}), turn(&wire.Fenced{ID: 1}), turn(&wire.Drained{}), turn(&wire.Reject{}), turn(&wire.Resume{}), turn(&wire.Resumed{}),
	turn(&wire.Ring{}), turn(&wire.Copied{}), turn(&wire.Hello{Session: 2}),

	{"a second, correct hello", func(m *foe) { m.send(m.hello(m.key)(m.Conn.(*peer.SecureConn))) }, "sent a frame of type hello", 0},
	{"another connection's hello", func(m *foe) {
		other := m.dial(strangerKey(2))
		replayed := m.hello(strangerKey(2))(other.Conn.(*peer.SecureConn))
		other.Close()
		m.refused(strangerKey(2), func(*peer.SecureConn) wire.Frame { return replayed }, wire.CodeToken, "made for another connection")
	}, "", 0},
	{"a hello of another engine", func(m *foe) {
		m.refused(m.key, m.hello(strangerKey(2)), wire.CodeToken, "names another engine")
	}, "", 0},
	{"a resume of another engine's session", func(m *foe) {
		session, ann := m.b.targets.Latest().In().Session(), m.a.conn().Engine
		m.refused(m.key, func(*peer.SecureConn) wire.Frame { return &wire.Resume{Engine: ann, Session: session, Try: 1} }, wire.CodeToken, "names another engine")
		m.refused(strangerKey(2), func(*peer.SecureConn) wire.Frame {
			return &wire.Resume{Engine: strangerKey(2).Pin.Engine(), Session: session, Try: 1}
		}, wire.CodeSession, "no such session")
	}, "", 0},
	{"a resume with a wrong proof", func(m *foe) {
		m.refused(m.key, func(*peer.SecureConn) wire.Frame {
			return &wire.Resume{Engine: m.key.Pin.Engine(), Session: m.session, Try: 1}
		}, wire.CodeToken, "does not come from the initiator")
	}, "", 0},
	{"a resume with an impossible count", func(m *foe) {
		secret, err := trust.SessionSecret(m.to.Token, m.Conn.(*peer.SecureConn).Bind)
		require.NoError(m.t, err)
		m.refused(m.key, func(c *peer.SecureConn) wire.Frame {
			return &wire.Resume{Engine: m.key.Pin.Engine(), Session: m.session, Try: 1, Got: 1 << 40, Mac: secret.ResumeMac(c.Bind, m.session, 1, 1<<40)}
		}, wire.CodeSession, "impossible number")
	}, "", 0},
	{"no hello", func(m *foe) {
		for _, f := range []wire.Frame{&wire.Ping{}, &wire.KeysReq{ID: 1}, &wire.Bye{Gone: true}, &wire.Welcome{}} {
			c := m.dial(m.key)
			require.NoError(m.t, wire.WriteFrame(c, f))
			c.ended(m.t)
		}
	}, "", 0},

	{"a ping with an impossible count", func(m *foe) { m.send(&wire.Ping{Seq: 1, Got: 1000}) }, "acknowledged 1000 frames", 0},
	{"a pong with an impossible count", func(m *foe) { m.send(&wire.Pong{Got: math.MaxUint64}) }, "acknowledged 18446744073709551615 frames", 0},
	{"a pong that nobody asked for", func(m *foe) { m.send(&wire.Pong{Seq: 77}, &wire.Pong{}) }, "", 0},
	{"a count that goes back", func(m *foe) {
		m.send(&wire.Drain{})
		await[*wire.Drained](m.t, m.hostile)
		m.send(&wire.Pong{Got: 1}, &wire.Pong{Got: 0})
	}, "", 0},

	{"a fence of no link", func(m *foe) {
		for _, n := range []uint8{1, 63, 255} {
			m.send(&wire.Fence{ID: 9, Rail: n, Epoch: 1, Addr: m.offers[0].Addr})
			require.Equal(m.t, wire.Fenced{ID: 9, Rail: n, Epoch: 1, Addr: []byte{}, Have: []uint64{}}, *await[*wire.Fenced](m.t, m.hostile))
		}
	}, "", 0},
	{"links without end", func(m *foe) {
		begun := 0
		for i := range uint8(250) {
			m.send(&wire.Fence{ID: 9, Rail: uint8(1 + begun), Addr: m.offers[0].Addr, New: []wire.Pair{{Own: 1 + i, ID: uint64(i)}}})
			if await[*wire.Fenced](m.t, m.hostile).Link != 0 {
				begun++
			}
		}
		require.Equal(m.t, core.MaxLinks-1, begun)
		m.works()
	}, "", 0},
	{"links over nothing, and over a pair that has one", func(m *foe) {
		for _, p := range []wire.Pair{{Rail: 9}, {Rail: 255, Own: 255}, {}} {
			m.send(&wire.Fence{ID: 9, Rail: 1, Addr: m.offers[0].Addr, New: []wire.Pair{p}})
			require.Zero(m.t, await[*wire.Fenced](m.t, m.hostile).Link, "%+v", p)
		}
		m.send(&wire.Fence{ID: 9, Rail: core.MaxLinks, Addr: m.offers[0].Addr, New: []wire.Pair{{Own: 7}}})
		require.Zero(m.t, await[*wire.Fenced](m.t, m.hostile).Link, "above all numbers")
		m.works()
	}, "", 0},
	{"a fence without an address", func(m *foe) {
		m.send(&wire.Fence{ID: 9, Epoch: 1})
		require.Empty(m.t, await[*wire.Fenced](m.t, m.hostile).Addr)
	}, "", exclusive},
	{"a fence to garbage", func(m *foe) {
		for i := range uint32(20) {
			m.send(&wire.Fence{ID: 9, Epoch: 1 + i, Addr: bytes.Repeat([]byte{0xff}, 1+50*int(i))})
			await[*wire.Fenced](m.t, m.hostile)
		}
	}, "", exclusive},
	{"epochs that go back", func(m *foe) {
		for _, epoch := range []uint32{5, 6, 4, 0} {
			m.send(&wire.Fence{ID: 9, Epoch: epoch, Addr: m.offers[0].Addr})
		}
	}, "epoch 4", exclusive},
	{"the same epoch again", func(m *foe) {
		m.send(&wire.Fence{ID: 9, Epoch: 1, Addr: m.offers[0].Addr}, &wire.Fence{ID: 10, Epoch: 1, Addr: m.offers[0].Addr})
		await[*wire.Fenced](m.t, m.hostile)
		await[*wire.Fenced](m.t, m.hostile)
	}, "", exclusive},
	{"a flood of fences", func(m *foe) {
		for i := range uint32(200) {
			m.send(&wire.Fence{ID: 9, Epoch: 1 + i, Addr: m.offers[0].Addr})
		}
		m.works()
	}, "", exclusive},

	{"a fence of all peers' endpoint", func(m *foe) {
		m.send(&wire.Fence{ID: 9, Epoch: 1, Addr: m.offers[0].Addr})
	}, "an endpoint that serves all peers cannot be fenced", shared},

	{"keys of odd ranges", func(m *foe) {
		ranges := wire.Claims{{}, {Range: wire.Range{Len: math.MaxUint64}}, {Range: wire.Range{Addr: math.MaxUint64}}, {Range: wire.Range{Addr: m.theirs.addr()}},
			{Range: wire.Range{Addr: m.theirs.addr(), Len: uint64(len(m.theirs.b)), Dev: 99}}, {Range: wire.Range{Addr: m.theirs.addr(), Len: 1, Mem: -5}},
			{Range: wire.Range{Addr: m.theirs.addr(), Len: uint64(len(m.theirs.b)), Dev: math.MaxUint64, Mem: 1}}}
		m.send(&wire.KeysReq{ID: 1, Ranges: ranges})
		for _, e := range await[*wire.Keys](m.t, m.hostile).Entries {
			require.False(m.t, e.Known)
		}
	}, "", 0},
	{"keys of a range that wraps", func(m *foe) {
		list := binary.AppendUvarint(binary.AppendVarint([]byte{6}, -4096), 8192)
		m.raw(wire.TypeKeysReq, packed(list))
	}, "run past the end of the address space", 0},
	{"the same keys 512 times", func(m *foe) {
		ranges := make(wire.Claims, wire.MaxRanges)
		for i := range ranges {
			ranges[i] = m.b.claim(m.theirs.owned())
		}
		m.send(&wire.KeysReq{ID: 1, Ranges: ranges})
		for _, e := range await[*wire.Keys](m.t, m.hostile).Entries {
			require.True(m.t, e.Known)
		}
	}, "", 0},
	{"513 ranges", func(m *foe) { m.raw(wire.TypeKeysReq, packed(bytes.Repeat([]byte{7, 0}, wire.MaxRanges+1))) }, "above a limit", 0},
	{"a revoked without a revoke", func(m *foe) {
		for i := range uint64(100) {
			m.send(&wire.Revoked{ID: i, All: i%2 == 0})
		}
	}, "", 0},
	{"drains far ahead", func(m *foe) {
		m.send(&wire.Drain{Next: math.MaxUint64}, &wire.Drain{Next: 1 << 40}, &wire.Drain{Next: math.MaxUint64})
	}, "", 0},

	{"offers of unknown rails", func(m *foe) {
		for n, rail := range []uint8{50, 255} {
			o := m.offers[0]
			o.Rail = rail
			f := m.knocks(n, []wire.EndpointOffer{o})
			require.IsType(m.t, &wire.Reject{}, f)
			require.Contains(m.t, f.(*wire.Reject).Text, "we have no rail")
			require.IsType(m.t, &wire.Welcome{}, m.knocks(10+n, []wire.EndpointOffer{o, m.offers[0]}))
		}
		require.Contains(m.t, m.knocks(20, nil).(*wire.Reject).Text, "offers no link")
	}, "", 0},
	{"offers of garbage", func(m *foe) {
		for n, addr := range [][]byte{nil, {0}, bytes.Repeat([]byte{0xff}, len(m.offers[0].Addr)), make([]byte, len(m.offers[0].Addr)),
			append(bytes.Clone(m.offers[0].Addr), 0), m.offers[0].Addr[1:], make([]byte, wire.MaxAddr)} {
			m.knocks(30+n, []wire.EndpointOffer{{ID: 1, Addr: addr}})
		}
	}, "", 0},
	{"one rail 64 times", func(m *foe) {
		offers := make([]wire.EndpointOffer, wire.MaxRails)
		for i := range offers {
			offers[i] = m.offers[0]
			offers[i].Own = uint8(i)
		}
		require.IsType(m.t, &wire.Welcome{}, m.knocks(40, offers))
	}, "", 0},
	{"endpoints of others", func(m *foe) {
		own, theirs := m.a.remote("bob").links()[0], m.offers[0]
		theirs.Addr, theirs.ID = bytes.Clone(own.EP.Addr()), own.ID
		m.knocks(50, []wire.EndpointOffer{theirs})
		c, f := knock(m.to, strangerKey(1051), 1, m.offers)
		require.IsType(m.t, &wire.Welcome{}, f)
		theirs.Addr, theirs.ID = f.(*wire.Welcome).Offers[0].Addr, f.(*wire.Welcome).Offers[0].ID // bob's
		m.knocks(52, []wire.EndpointOffer{theirs})
		require.NoError(m.t, wire.WriteFrame(c, &wire.Bye{Gone: true}))
		c.Close()
	}, "", 0},

	{"a frame of an unknown type", func(m *foe) { m.raw(99, []byte{0x80}) }, "frame of type(99)", 0},
	{"a frame of type 0", func(m *foe) { m.raw(0, nil) }, "frame of none", 0},
	{"a huge frame", func(m *foe) { m.head(wire.TypeKeysReq, wire.MaxBody+1) }, "at most 1048576", 0},
	{"the hugest frame", func(m *foe) { m.head(wire.TypePing, math.MaxUint32) }, "at most 1048576", 0},
	{"a large frame of nothing", func(m *foe) { m.raw(wire.TypeKeysReq, make([]byte, wire.MaxBody)) }, "malformed", 0},
	{"not canonical", func(m *foe) { m.raw(wire.TypeDrain, []byte{0x81, 0x18, 5}) }, "not in canonical form", 0},
	{"a half frame that trickles", func(m *foe) {
		m.head(wire.TypeKeysReq, wire.MaxBody)
		for range 300 {
			_, _ = m.Write([]byte{0x82})
		}
		m.works()
	}, "", 0},
	{"thousands of frames", func(m *foe) {
		for i := range uint64(4000) {
			m.send(&wire.Ping{Seq: i}, &wire.KeysReq{ID: i}, &wire.Drain{Next: i}, &wire.Revoked{ID: i}, &wire.Fence{ID: i, Rail: 9})
		}
		m.works()
	}, "", 0},
	{"frames after the goodbye", func(m *foe) {
		m.send(&wire.Bye{Text: "gone", Gone: true}, &wire.KeysReq{ID: 1, Ranges: wire.Claims{m.b.claim(m.theirs.owned())}}, &wire.Fence{ID: 1, Epoch: 1, Addr: m.offers[0].Addr})
	}, "gone", 0},
	{"rings for no memory", func(m *foe) {
		for i := range uint64(500) {
			m.send(&wire.RingReq{ID: i, For: wire.Claim{Range: wire.Range{Addr: m.theirs.addr(), Len: 4096, Dev: i, Mem: 1}}})
			require.Equal(m.t, wire.CodeMemory, await[*wire.Ring](m.t, m.hostile).Code)
		}
	}, "", 0},
	{"a copy without a ring", func(m *foe) {
		m.send(&wire.Copy{ID: 1, Out: true, At: m.theirs.addr(), Regions: wire.Claims{m.b.claim(m.theirs.owned())}, Pieces: wire.CopyPieces{{Addr: m.theirs.addr(), Len: 64}}})
	}, "more copies at once", 0},
	{"a packed copy without a ring", func(m *foe) {
		m.send(&wire.PackedCopy{Packed: 64, Copy: wire.Copy{ID: 1, At: m.theirs.addr(), Regions: wire.Claims{m.b.claim(m.theirs.owned())}, Pieces: wire.CopyPieces{{Addr: m.theirs.addr(), Len: 64}}}})
	}, "more copies at once", 0},
	{"a packed copy of nothing", func(m *foe) { m.raw(wire.TypePackedCopy, []byte{0x82, 0x85, 1, 0xf4, 0, 0x40, 0x40, 0}) }, "malformed", 0},
}

// usage is what sessions of peers hold at an engine.
type usage struct {
	sessions   int
	in         uint64
	used       limits.Amount
	goroutines int
}

// peers is usage without the goroutines, which also tests have.
func (u usage) peers() usage { u.goroutines = 0; return u }

func (a *agent) usage() usage {
	return usage{a.sessions(), a.node.Stats().In, a.targets.Used(), procstat.Goroutines()}
}

// An initiator with the token breaks one rule after the other. The engine lives and names the cause. An honest pair works at
// once, also while the attack goes on. Nothing of the attacker's sessions stays.
func TestHostileInitiator(t *testing.T) { // not parallel: it counts goroutines
	fabrics := map[string]func(t testing.TB) *harness{
		"fake":   func(t testing.TB) *harness { return onFake(t, fake.TCPCaps()) },
		"shared": func(t testing.TB) *harness { return onFake(t, sharedCaps()) },
	}
	if !testing.Short() {
		fabrics["verbs"] = func(t testing.TB) *harness { return onVerbs(t, 1) }
		fabrics["ofi"], fabrics["host"] = onOFI, onHost
	}
	for name, open := range fabrics {
		t.Run(name, func(t *testing.T) {
			h := open(t)
			p := h.pair(64 << 10)
			p.works()
			to, offers := p.b.conn(), h.offer(p.b, 1)
			if h.fabric == nil { // a peer must be there
				ep, err := p.a.rails.List[0].OpenEndpoint()
				require.NoError(t, err)
				defer ep.Close()
				offers[0].Addr = bytes.Clone(ep.Addr())
			}
			alone := p.b.usage()
			stranger := enters(t, to, strangerKey(99), 1, offers) // what an engine starts with its first peers stays
			require.NoError(t, wire.WriteFrame(stranger, &wire.Bye{Gone: true}))
			until(t, "the stranger leaves", func() bool { return p.b.usage().peers() == alone.peers() })
			for n, k := range attacks {
				if !k.on.fits(p.b) {
					continue
				}
				t.Run(k.name, func(t *testing.T) {
					before := p.b.usage()
					m := &foe{pair: p, t: t, h: h, to: to, key: strangerKey(100 + n), offers: offers}
					m.hostile = sayHelloAs("mallory: "+k.name, to, m.key, 1, offers)
					require.NotNil(t, m.hostile)
					await[*wire.Welcome](t, m.hostile)
					k.do(m)
					p.works()
					if k.ends != "" {
						until(t, "the log names the cause", func() bool { return h.log.has("peer's session ended", k.name, k.ends) })
					}
					require.Equal(t, k.ends != "", h.log.has("peer's session ended", "mallory: "+k.name))
					m.send(&wire.Bye{Gone: true})
					m.Close()
					p.works()
					if shared.fits(p.b) { // sessions that ended in anger stay for a while
						until(t, "the session ends", func() bool { return p.b.node.Stats().In == alone.in })
						return
					}
					until(t, "nothing is left", func() bool { return p.b.usage().peers() == alone.peers() })
					until(t, "no goroutine is left", func() bool { return procstat.Goroutines() <= before.goroutines })
				})
			}
		})
	}
}
