package peer

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

func TestRefusals(t *testing.T) {
	restarted := func(b *wire.ConnBlob) { b.Engine[0]++; b.Pin[0]++; b.Token[0]++ }
	for _, c := range []struct {
		name   string
		blob   func(*wire.ConnBlob)
		hello  error
		code   wire.Code
		text   string
		count  func(Stats) uint64
		reason error
	}{
		{name: "wrong token", blob: func(b *wire.ConnBlob) { b.Token[5]++ }, code: wire.CodeToken, text: "wrong token",
			count: func(s Stats) uint64 { return s.BadToken }},
		{name: "restarted peer", blob: restarted, code: wire.CodeEngine,
			text: "not this engine: the peer was restarted; load its new metadata", count: func(s Stats) uint64 { return s.WrongEngine }},
		{name: "handler says no", hello: errors.New("no memory left"), code: wire.CodeInternal, text: "no memory left",
			count: func(s Stats) uint64 { return s.Refused }},
		{name: "no rails", hello: &RejectError{Code: wire.CodeRails, Text: "no rail fits"}, code: wire.CodeRails, text: "no rail fits",
			count: func(s Stats) uint64 { return s.Refused }},
	} {
		t.Run(c.name, func(t *testing.T) {
			i, s := newInitiator(), newTarget()
			s.hello = func(*In, wire.Hello) (Accept, error) { return Accept{}, c.hello }
			to, from := listen(t, s), listen(t, newTarget())
			b := blob(to)
			if c.blob != nil {
				c.blob(&b)
			}
			out := from.Dial(b, 0, i)
			want[evOffers](t, i.events)
			err := want[evLost](t, i.events).err
			require.ErrorIs(t, err, ErrRejected)
			var r *RejectError
			require.ErrorAs(t, err, &r)
			assert.Equal(t, c.code, r.Code)
			assert.Equal(t, c.hello != nil, r.Proved)
			assert.ErrorContains(t, err, c.text)
			assert.ErrorContains(t, err, t.Name()[:4], "names the peer")
			assert.ErrorContains(t, err, to.Addrs()[0])
			assert.Equal(t, Lost, out.State())
			if c.hello != nil {
				assert.Equal(t, uint64(1), c.count(to.Stats()), "a proved refusal is final")
			} else {
				assert.Greater(t, c.count(to.Stats()), uint64(1), "anybody may have sent the refusal, so the initiator retries")
			}
			eventually(t, func() bool { return to.Stats().In == 0 }, "the session is forgotten")
			if c.hello != nil {
				want[evHello](t, s.events)
			}
			assert.Empty(t, s.events, "no Gone for a refused Hello")
			assert.Empty(t, i.events)
		})
	}
}

func TestVersionMismatch(t *testing.T) {
	t.Run("of the initiator", func(t *testing.T) {
		s := newTarget()
		to := listen(t, s)
		c := fakePeer(t, to)
		_, err := wire.ReadFrame(c, 0)
		require.NoError(t, err)
		f := asks(t, c, &wire.Open{Version: 99})
		require.IsType(t, &wire.Reject{}, f)
		assert.Equal(t, wire.CodeVersion, f.(*wire.Reject).Code)
		assert.Contains(t, f.(*wire.Reject).Text, "install the same GORAIL")
		assert.Equal(t, uint64(1), to.Stats().BadVersion)
		assert.Empty(t, s.events)
	})
	t.Run("of the target", func(t *testing.T) {
		i := newInitiator()
		from := listen(t, newTarget())
		from.Dial(impostor(t, func(c net.Conn) { _ = wire.WriteFrame(c, &wire.Challenge{Version: 99}) }), 0, i)
		err := want[evLost](t, i.events).err
		assert.ErrorIs(t, err, wire.ErrVersion)
		assert.ErrorContains(t, err, "install the same GORAIL")
	})
}

// impostor listens, and calls serve for each connection.
func impostor(t *testing.T, serve func(net.Conn)) wire.ConnBlob {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	b := newBlob("impostor")
	b.Control = []string{l.Addr().String()}
	return b
}

func TestImpostors(t *testing.T) {
	for _, c := range []struct {
		name  string
		serve func(net.Conn)
		want  error
	}{
		{"another service", func(c net.Conn) { _, _ = c.Write([]byte("220 mail.example ESMTP ready\r\n")) }, ErrProtocol},
		{"another frame", func(c net.Conn) { _ = wire.WriteFrame(c, &wire.Ping{}) }, ErrProtocol},
		{"a welcome without TLS", func(c net.Conn) {
			_ = wire.WriteFrame(c, &wire.Challenge{Version: wire.Version})
			_, _ = wire.ReadFrame(c, 0)
			_ = wire.WriteFrame(c, &wire.Welcome{Session: 1})
		}, ErrProtocol},
		{"another key", func(c net.Conn) {
			own := config("evil")
			if o, err := Challenge(c); err == nil {
				_, _ = wire.ReadFrame(c, 0)
				_, _ = o.Accept(&own.Identity, own.Key, nil)
			}
		}, trust.ErrPin},
		{"dies after the open", func(c net.Conn) {
			_ = wire.WriteFrame(c, &wire.Challenge{Version: wire.Version})
			_, _ = wire.ReadFrame(c, 0)
		}, ErrUnreachable},
		{"closes at once", func(net.Conn) {}, ErrUnreachable},
		{"says nothing", func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) }, ErrUnreachable},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := newInitiator()
			from := listen(t, newTarget(), func(c *Config) { c.ConnectTimeout = time.Second })
			from.Dial(impostor(t, c.serve), 0, i)
			for {
				if e, ok := (<-i.events).(evLost); ok {
					assert.ErrorIs(t, e.err, c.want)
					break
				}
			}
			assert.Empty(t, i.events)
		})
	}
}

func TestBusyTargetIsTriedAgain(t *testing.T) {
	i, s := newInitiator(), newTarget()
	calls := 0
	s.hello = func(*In, wire.Hello) (Accept, error) {
		if calls++; calls < 3 {
			return Accept{}, &RejectError{Code: wire.CodeBusy, Text: "try again"}
		}
		return Accept{}, nil
	}
	to, from := listen(t, s), listen(t, newTarget())
	from.Dial(blob(to), 0, i)
	want[evOffers](t, i.events)
	want[evReady](t, i.events) // without further calls of Offers
}
