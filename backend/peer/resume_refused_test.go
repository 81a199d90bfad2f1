package peer

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// handmade is a session whose initiator is a bare connection.
type handmade struct {
	to     *Node
	s      *target
	key    *trust.Key
	conn   *SecureConn
	in     *In
	secret *trust.Secret
}

func newHandmade(t *testing.T) *handmade {
	t.Helper()
	h := &handmade{s: newTarget(), key: config("").Key}
	h.to = listen(t, h.s, minute)
	var f wire.Frame
	h.conn, f = handshakeByHand(t, fakePeer(t, h.to), blob(h.to), h.key)
	require.IsType(t, &wire.Welcome{}, f)
	var err error
	h.secret, err = trust.SessionSecret(blob(h.to).Token, h.conn.Bind)
	require.NoError(t, err)
	h.in = want[evHello](t, h.s.events).in
	eventually(t, func() bool { return h.in.State() == Ready }, "ready")
	return h
}

// resume sends a Resume on another connection, made with a key. before and after may alter the frame before and after
// its MAC is computed.
func (h *handmade) resume(t *testing.T, key *trust.Key, before, after func(*wire.Resume)) (net.Conn, wire.Frame) {
	t.Helper()
	c := secureByHand(t, fakePeer(t, h.to), blob(h.to), key)
	r := &wire.Resume{Engine: h.key.Pin.Engine(), Session: 1, Try: 1}
	if before != nil {
		before(r)
	}
	r.Mac = h.secret.ResumeMac(c.Bind, r.Session, r.Try, r.Got)
	if after != nil {
		after(r)
	}
	f := asks(t, c, r)
	if answer, ok := f.(*wire.Resumed); ok {
		assert.Equal(t, h.secret.ResumedMac(c.Bind, answer.Got), answer.Mac)
	}
	return c, f
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
	badToken := func(s Stats) uint64 { return s.BadToken }
	other := config("").Key
	for _, c := range []struct {
		name          string
		key           *trust.Key
		before, after func(*wire.Resume)
		code          wire.Code
		count         func(Stats) uint64
	}{
		{"wrong MAC", h.key, nil, func(r *wire.Resume) { r.Mac[3]++ }, wire.CodeToken, badResume},
		{"changed afterwards", h.key, nil, func(r *wire.Resume) { r.Got++ }, wire.CodeToken, badResume},
		{"another key", other, nil, nil, wire.CodeToken, badToken},
		{"another initiator", other, func(r *wire.Resume) { r.Engine = other.Pin.Engine() }, nil, wire.CodeSession, badResume},
		{"another session", h.key, func(r *wire.Resume) { r.Session = 2 }, nil, wire.CodeSession, badResume},
		{"without the secret", h.key, nil, func(r *wire.Resume) { r.Mac = wire.Mac{} }, wire.CodeToken, badResume},
		{"got more than was sent", h.key, func(r *wire.Resume) { r.Got = 1000 }, nil, wire.CodeSession, badResume},
		{"got far too much", h.key, func(r *wire.Resume) { r.Got = 1<<64 - 1 }, nil, wire.CodeSession, badResume},
		{"an old try", h.key, func(r *wire.Resume) { r.Try = 0 }, nil, wire.CodeBusy, badResume},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := c.count(h.to.Stats())
			_, f := h.resume(t, c.key, c.before, c.after)
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

	c, f := h.resume(t, h.key, func(r *wire.Resume) { r.Got = 1 }, nil)
	require.IsType(t, &wire.Resumed{}, f)
	assert.Equal(t, uint64(1), f.(*wire.Resumed).Got)
	assert.Equal(t, uint64(2), next(t, c).(*wire.Revoke).ID, "frames that were not received are sent again")
	_, err := io.Copy(io.Discard, h.conn)
	assert.NoError(t, err, "the old connection is closed")
	require.NoError(t, wire.WriteFrame(c, &wire.Revoked{ID: 2}))
	require.Equal(t, uint64(2), want[evRevoked](t, h.s.events).id)
	assert.Equal(t, uint64(1), h.to.Stats().Resent)

	_, f = h.resume(t, h.key, func(r *wire.Resume) { r.Got = 1 }, nil)
	assert.Equal(t, wire.CodeBusy, f.(*wire.Reject).Code, "an outdated try")
	_, f = h.resume(t, h.key, func(r *wire.Resume) { r.Try = 2 }, nil)
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
	assert.Equal(t, wire.CodeToken, f.(*wire.Reject).Code, "its Open was for another challenge")
	assert.Equal(t, uint64(1), r.to.Stats().BadToken)
	r.works(t)
	assert.Equal(t, uint64(1), r.to.Stats().Resumed)
}

// A process without the token that answers at an address of the peer is not trusted, and the true peer is found.
func TestImpostorsDoNotResume(t *testing.T) {
	challenge := func(c net.Conn) *opening {
		o, _ := Challenge(c)
		_, _ = wire.ReadFrame(c, 0)
		return o
	}
	for name, serve := range map[string]func(net.Conn){
		"another key": func(c net.Conn) {
			own := config("evil")
			if s, err := challenge(c).Accept(&own.Identity, own.Key, nil); err == nil {
				_, _ = wire.ReadFrame(s, 0)
			}
		},
		"another engine": func(c net.Conn) {
			challenge(c)
			_ = wire.WriteFrame(c, &wire.Reject{Code: wire.CodeEngine})
		},
		"no TLS":          func(c net.Conn) { challenge(c); _ = wire.WriteFrame(c, &wire.Resumed{}) },
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
	i, evil := newInitiator(), config("evil")
	from := listen(t, newTarget(), minute)
	var secret *trust.Secret
	b := impostor(t, func(c net.Conn) {
		s, f := acceptByHand(c, evil)
		switch f := f.(type) {
		case *wire.Hello:
			secret, _ = trust.SessionSecret(evil.Identity.Token, s.Bind)
			_ = wire.WriteFrame(s, &wire.Welcome{Session: f.Session, Offers: []wire.EndpointOffer{}})
		case *wire.Resume:
			_ = wire.WriteFrame(s, &wire.Resumed{Mac: secret.ResumedMac(s.Bind, 1), Got: 1})
		}
	})
	to := evil.Identity
	to.Control = b.Control
	from.Dial(to, 0, i)
	want[evOffers](t, i.events)
	want[evReady](t, i.events)
	err := want[evLost](t, i.events).err
	assert.ErrorIs(t, err, ErrProtocol)
	assert.ErrorContains(t, err, "an impossible number")
}

// acceptByHand is the target's side of a handshake, up to the Hello or Resume; nil after an error.
func acceptByHand(c net.Conn, own Config) (*SecureConn, wire.Frame) {
	o, err := Challenge(c)
	if err != nil {
		return nil, nil
	}
	if why, err := o.ReadOpen(&own.Identity); err != nil || why != nil {
		return nil, nil
	}
	s, err := o.Accept(&own.Identity, own.Key, nil)
	if err != nil {
		return nil, nil
	}
	f, _ := wire.ReadFrame(s, 0)
	return s, f
}
