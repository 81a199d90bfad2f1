package peer

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// handmade is a session whose initiator is a bare connection.
type handmade struct {
	to    *Node
	s     *target
	conn  net.Conn
	in    *In
	proof wire.Mac
}

func newHandmade(t *testing.T) *handmade {
	t.Helper()
	h := &handmade{s: newTarget()}
	h.to = listen(t, h.s, minute)
	h.conn = fakePeer(t, h.to)
	w, ok := handshakeByHand(t, h.conn, blob(h.to), nil).(*wire.Welcome)
	require.True(t, ok)
	h.proof = w.Mac
	h.in = want[evHello](t, h.s.events).in
	eventually(t, func() bool { return h.in.State() == Ready }, "ready")
	return h
}

// resume sends a Resume on another connection. before and after may alter the frame before and after its MAC is
// computed.
func (h *handmade) resume(t *testing.T, before, after func(*wire.Resume)) (net.Conn, wire.Frame) {
	t.Helper()
	c := fakePeer(t, h.to)
	f, err := wire.ReadFrame(c, 0)
	require.NoError(t, err)
	r := &wire.Resume{Version: wire.Version, Nonce: wire.Nonce{7}, Engine: wire.EngineID{1}, Target: h.to.cfg.Identity.Engine,
		Session: 1, Proof: h.proof, Try: 1}
	if before != nil {
		before(r)
	}
	r.Mac, err = wire.MacResume(h.to.cfg.Identity.Token, f.(*wire.Challenge).Nonce, r)
	require.NoError(t, err)
	if after != nil {
		after(r)
	}
	require.NoError(t, wire.WriteFrame(c, r))
	f2, err := wire.ReadFrame(c, 0)
	require.NoError(t, err)
	if answer, ok := f2.(*wire.Resumed); ok {
		mac, err := wire.MacResumed(h.to.cfg.Identity.Token, f.(*wire.Challenge).Nonce, r.Nonce, answer)
		require.NoError(t, err)
		assert.Equal(t, mac, answer.Mac)
	}
	return c, f2
}

// next reads the next frame other than Ping and Pong.
func next(t *testing.T, c net.Conn) wire.Frame {
	t.Helper()
	for {
		f, err := wire.ReadFrame(c, 0)
		require.NoError(t, err)
		if wire.Numbered(f) {
			return f
		}
	}
}

func TestBadResumes(t *testing.T) {
	h := newHandmade(t)
	require.NoError(t, wire.WriteFrame(h.conn, &wire.Fence{ID: 1, Addr: []byte{}}))
	require.Equal(t, uint64(1), next(t, h.conn).(*wire.Fenced).ID)
	badResume := func(s Stats) uint64 { return s.BadResume }
	for _, c := range []struct {
		name          string
		before, after func(*wire.Resume)
		code          wire.Code
		count         func(Stats) uint64
	}{
		{"wrong MAC", nil, func(r *wire.Resume) { r.Mac[3]++ }, wire.CodeToken, func(s Stats) uint64 { return s.BadToken }},
		{"changed afterwards", nil, func(r *wire.Resume) { r.Got++ }, wire.CodeToken, func(s Stats) uint64 { return s.BadToken }},
		{"another initiator", func(r *wire.Resume) { r.Engine = wire.EngineID{2} }, nil, wire.CodeSession, badResume},
		{"another session", func(r *wire.Resume) { r.Session = 2 }, nil, wire.CodeSession, badResume},
		{"without the proof", func(r *wire.Resume) { r.Proof = wire.Mac{} }, nil, wire.CodeToken, badResume},
		{"another target", func(r *wire.Resume) { r.Target = wire.EngineID{9} }, nil, wire.CodeEngine, func(s Stats) uint64 { return s.WrongEngine }},
		{"another version", func(r *wire.Resume) { r.Version++ }, nil, wire.CodeVersion, func(s Stats) uint64 { return s.BadVersion }},
		{"got more than was sent", func(r *wire.Resume) { r.Got = 1000 }, nil, wire.CodeSession, badResume},
		{"got far too much", func(r *wire.Resume) { r.Got = 1<<64 - 1 }, nil, wire.CodeSession, badResume},
		{"an old try", func(r *wire.Resume) { r.Try = 0 }, nil, wire.CodeBusy, badResume},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := c.count(h.to.Stats())
			_, f := h.resume(t, c.before, c.after)
			require.IsType(t, &wire.Reject{}, f)
			assert.Equal(t, c.code, f.(*wire.Reject).Code)
			assert.Equal(t, before+1, c.count(h.to.Stats()))
			require.NoError(t, wire.WriteFrame(h.conn, &wire.Fence{ID: 5, Addr: []byte{}}))
			require.Equal(t, uint64(5), next(t, h.conn).(*wire.Fenced).ID, "the session is unharmed")
			require.NoError(t, wire.WriteFrame(h.conn, &wire.Ping{Got: 1}))
		})
	}
	assert.Zero(t, h.to.Stats().Resumed)
	assert.Empty(t, h.s.events)
}

func TestResumeByHand(t *testing.T) {
	h := newHandmade(t)
	h.in.Revoke(1, nil)
	h.in.Revoke(2, nil)
	require.Equal(t, uint64(1), next(t, h.conn).(*wire.Revoke).ID)
	require.Equal(t, uint64(2), next(t, h.conn).(*wire.Revoke).ID)
	require.NoError(t, wire.WriteFrame(h.conn, &wire.Revoked{ID: 1}))
	require.Equal(t, uint64(1), want[evRevoked](t, h.s.events).id)

	c, f := h.resume(t, func(r *wire.Resume) { r.Got = 1 }, nil)
	require.IsType(t, &wire.Resumed{}, f)
	assert.Equal(t, uint64(1), f.(*wire.Resumed).Got)
	assert.Equal(t, uint64(2), next(t, c).(*wire.Revoke).ID, "frames that were not received are sent again")
	_, err := io.Copy(io.Discard, h.conn)
	assert.NoError(t, err, "the old connection is closed")
	require.NoError(t, wire.WriteFrame(c, &wire.Revoked{ID: 2}))
	require.Equal(t, uint64(2), want[evRevoked](t, h.s.events).id)
	assert.Equal(t, uint64(1), h.to.Stats().Resent)

	_, f = h.resume(t, func(r *wire.Resume) { r.Got = 1 }, nil)
	assert.Equal(t, wire.CodeBusy, f.(*wire.Reject).Code, "an outdated try")
	_, f = h.resume(t, func(r *wire.Resume) { r.Try = 2 }, nil)
	assert.Equal(t, wire.CodeSession, f.(*wire.Reject).Code, "fewer than were acknowledged")
	h.in.Revoke(3, nil)
	assert.Equal(t, uint64(3), next(t, c).(*wire.Revoke).ID, "the session is unharmed")

	require.NoError(t, wire.WriteFrame(c, &wire.Pong{Got: 4}))
	assert.ErrorIs(t, want[evGone](t, h.s.events).err, ErrProtocol, "an impossible acknowledgement")
}

// A replayed Resume does not resume the session.
func TestReplayedResume(t *testing.T) {
	r := newMultipath(t, 1, minute)
	r.paths[0].cut()
	r.works(t)
	r.resumed(t, 1)
	wrote := r.paths[0].wrote() // a Resume and the frames after it
	c := fakePeer(t, r.to)
	_, err := wire.ReadFrame(c, 0)
	require.NoError(t, err)
	_, err = c.Write(wrote)
	require.NoError(t, err)
	f, err := wire.ReadFrame(c, 0)
	require.NoError(t, err)
	assert.Equal(t, wire.CodeToken, f.(*wire.Reject).Code)
	assert.Equal(t, uint64(1), r.to.Stats().BadToken)
	r.works(t)
	assert.Equal(t, uint64(1), r.to.Stats().Resumed)
}

// A process without the token that answers at an address of the peer is not trusted, and the true peer is found.
func TestImpostorsDoNotResume(t *testing.T) {
	challenge := func(c net.Conn) *wire.Resume {
		_ = wire.WriteFrame(c, &wire.Challenge{Version: wire.Version})
		f, _ := wire.ReadFrame(c, 0)
		r, _ := f.(*wire.Resume)
		return r
	}
	for name, serve := range map[string]func(net.Conn){
		"without the token": func(c net.Conn) {
			if r := challenge(c); r != nil {
				_ = wire.WriteFrame(c, &wire.Resumed{Version: wire.Version, Engine: r.Target, Session: r.Session})
			}
		},
		"another engine": func(c net.Conn) {
			challenge(c)
			_ = wire.WriteFrame(c, &wire.Reject{Code: wire.CodeEngine})
		},
		"another frame":   func(c net.Conn) { challenge(c); _ = wire.WriteFrame(c, &wire.Welcome{}) },
		"another service": func(c net.Conn) { _, _ = c.Write([]byte("220 mail.example ESMTP ready\r\n")) },
		"closes at once":  func(net.Conn) {},
		"says nothing": func(c net.Conn) {
			_ = c.SetDeadline(time.Now().Add(testTimeout))
			_, _ = c.Read(make([]byte, 1))
		},
		"stops at the resume": func(c net.Conn) {
			_ = c.SetDeadline(time.Now().Add(testTimeout))
			challenge(c)
			_, _ = c.Read(make([]byte, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &multipath{pair: &pair{i: newInitiator(), s: newTarget()}}
			timeout := func(c *Config) { c.PeerTimeout = 2 * time.Second }
			r.to, r.from = listen(t, r.s, timeout), listen(t, newTarget(), timeout)
			path := newProxy(t, r.to)
			b := blob(r.to)
			b.Control = append([]string{path.l.Addr().String()}, impostor(t, serve).Control...)
			r.dial(t, b)
			path.cut()
			r.works(t)
			r.resumed(t, 1)
		})
	}
}

// A target is refused if it claims to have received frames that were never sent.
func TestResumedWithAnImpossibleCount(t *testing.T) {
	i, token := newInitiator(), identity("evil")
	from := listen(t, newTarget(), minute)
	b := impostor(t, func(c net.Conn) {
		challenge := &wire.Challenge{Version: wire.Version}
		_ = wire.WriteFrame(c, challenge)
		f, _ := wire.ReadFrame(c, 0)
		switch f := f.(type) {
		case *wire.Hello:
			w := &wire.Welcome{Version: wire.Version, Engine: f.Target, Session: f.Session, Offers: []wire.EndpointOffer{}}
			w.Mac, _ = wire.MacWelcome(token.Token, challenge.Nonce, f.Nonce, w)
			_ = wire.WriteFrame(c, w)
		case *wire.Resume:
			w := &wire.Resumed{Version: wire.Version, Engine: f.Target, Session: f.Session, Got: 1}
			w.Mac, _ = wire.MacResumed(token.Token, challenge.Nonce, f.Nonce, w)
			_ = wire.WriteFrame(c, w)
		}
	})
	token.Control = b.Control
	from.Dial(token, 0, i)
	want[evOffers](t, i.events)
	want[evReady](t, i.events)
	err := want[evLost](t, i.events).err
	assert.ErrorIs(t, err, ErrProtocol)
	assert.ErrorContains(t, err, "an impossible number")
}
