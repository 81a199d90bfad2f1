package trust

import (
	"crypto/tls"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

func key(t testing.TB) *Key {
	k, err := NewKey()
	require.NoError(t, err)
	return k
}

// shake does a handshake of TLS between two configurations.
func shake(t testing.TB, client, server *tls.Config) (c, s *tls.Conn, clientErr, serverErr error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	here, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	there, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { here.Close(); there.Close() })
	c, s = tls.Client(here, client), tls.Server(there, server)
	done := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err != nil {
			there.Close() // else the client would wait for the rest
		}
		done <- err
	}()
	if clientErr = c.Handshake(); clientErr != nil {
		here.Close()
	}
	return c, s, clientErr, <-done
}

// Both ends get the same binding, which no other connection or pair of keys has.
func TestBinding(t *testing.T) {
	a, b := key(t), key(t)
	seen := map[Binding]bool{}
	for range 2 {
		c, s, err1, err2 := shake(t, a.Client(b.Pin), b.Server())
		require.NoError(t, err1)
		require.NoError(t, err2)
		ends, nonce := Ends{a.Pin, b.Pin}, wire.Nonce{1}
		one, other := c.ConnectionState(), s.ConnectionState()
		pin, err := PeerPin(&other)
		require.NoError(t, err)
		require.Equal(t, a.Pin, pin)
		x, err := Bind(&one, ends, nonce)
		require.NoError(t, err)
		y, err := Bind(&other, ends, nonce)
		require.NoError(t, err)
		assert.Equal(t, x, y)
		for _, e := range []struct {
			ends  Ends
			nonce wire.Nonce
		}{{ends, nonce}, {ends, wire.Nonce{2}}, {Ends{b.Pin, b.Pin}, nonce}, {Ends{a.Pin, a.Pin}, nonce}, {Ends{b.Pin, a.Pin}, nonce}} {
			x, err := Bind(&one, e.ends, e.nonce)
			require.NoError(t, err)
			assert.False(t, seen[x])
			seen[x] = true
		}
	}
}

// An initiator accepts one key. Certificates that are no engine's are refused at both ends.
func TestKeys(t *testing.T) {
	a, b, other := key(t), key(t), key(t)
	_, _, err, _ := shake(t, a.Client(other.Pin), b.Server())
	assert.ErrorIs(t, err, ErrPin)

	two := *a
	two.cert.Certificate = append(two.cert.Certificate, b.cert.Certificate[0])
	_, _, _, err = shake(t, two.Client(b.Pin), b.Server())
	assert.ErrorIs(t, err, ErrCert)
	none := a.Client(b.Pin)
	none.Certificates = nil
	_, _, _, err = shake(t, none, b.Server())
	assert.Error(t, err)
	old := a.Client(b.Pin)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	_, _, err, _ = shake(t, old, b.Server())
	assert.Error(t, err, "TLS 1.2")
	foreign := a.Client(b.Pin)
	foreign.NextProtos = nil
	_, _, _, err = shake(t, foreign, b.Server())
	assert.Error(t, err, "another protocol")
	assert.NotEqual(t, a.Pin.Engine(), b.Pin.Engine())
}

// Every field changes every value that depends on it, and no label's value equals another's.
func TestSchedule(t *testing.T) {
	seen := map[string]string{}
	note := func(what string, v any) {
		text := fmt.Sprintf("%x", v)
		assert.Empty(t, seen[text], what)
		seen[text] = what
	}
	token, x, nonce := wire.Token{1}, Binding{2}, wire.Nonce{3}
	note("open", [32]byte(OpenMac(token, nonce, wire.EngineID{1})))
	note("open, other token", [32]byte(OpenMac(wire.Token{2}, nonce, wire.EngineID{1})))
	note("open, other target", [32]byte(OpenMac(token, nonce, wire.EngineID{2})))
	note("hello", [32]byte(HelloMac(token, x)))
	note("hello, other connection", [32]byte(HelloMac(token, Binding{3})))
	secret := func(token wire.Token, x Binding) *Secret {
		s, err := SessionSecret(token, x)
		require.NoError(t, err)
		return s
	}
	s := secret(token, x)
	for what, s := range map[string]*Secret{"session": s, "other token": secret(wire.Token{2}, x), "other connection": secret(token, Binding{9})} {
		note(what, [32]byte(*s))
		note(what+": salt of keys", s.KeySalt())
		note(what+": resume", [32]byte(s.ResumeMac(x, 1, 2, 3)))
		note(what+": resumed", [32]byte(s.ResumedMac(x, 3)))
	}
	note("resume on another connection", [32]byte(s.ResumeMac(Binding{8}, 1, 2, 3)))
	note("resume of another session", [32]byte(s.ResumeMac(x, 9, 2, 3)))
	note("another try", [32]byte(s.ResumeMac(x, 1, 9, 3)))
	note("another count", [32]byte(s.ResumeMac(x, 1, 2, 9)))
	name := LinkName{Fabric: "tcp", InitiatorRail: 1, TargetRail: 2, InitiatorID: 3, TargetID: 4, Epoch: 5, Ticket: Ticket{6}}
	for what, change := range map[string]func(n *LinkName){"link": func(*LinkName) {}, "fabric": func(n *LinkName) { n.Fabric = "" },
		"initiator's rail": func(n *LinkName) { n.InitiatorRail++ }, "target's rail": func(n *LinkName) { n.TargetRail++ },
		"initiator's id": func(n *LinkName) { n.InitiatorID++ }, "target's id": func(n *LinkName) { n.TargetID-- },
		"epoch": func(n *LinkName) { n.Epoch++ }, "ticket": func(n *LinkName) { n.Ticket[15]++ }} {
		n := name
		change(&n)
		l := s.Link(n)
		note(what, [32]byte(l.secret))
		note(what+": opening", [32]byte(l.OpeningMac([]byte{1})))
		note(what+": another opening", [32]byte(l.OpeningMac([]byte{2})))
		note(what+": accept", [32]byte(l.AcceptMac([]byte{1}, ConnNonce{1})))
		note(what+": accept with another nonce", [32]byte(l.AcceptMac([]byte{1}, ConnNonce{2})))
		for conn, r := range map[string]*RecordSecret{"records": l.Records(ConnNonce{}, ConnNonce{}, 0), "initiator's nonce": l.Records(ConnNonce{1}, ConnNonce{}, 0),
			"target's nonce": l.Records(ConnNonce{}, ConnNonce{1}, 0), "index": l.Records(ConnNonce{}, ConnNonce{}, 1)} {
			for key, k := range map[string]*RecordKey{"first": r.Key(ToTarget, 0), "other direction": r.Key(ToInitiator, 0), "next": r.Key(ToTarget, 1)} {
				note(what+": "+conn+": key: "+key, k.Key)
				note(what+": "+conn+": iv: "+key, k.IV)
			}
		}
	}
}

// A secret appears in no log line.
func TestSecretsPrintNothing(t *testing.T) {
	s := Secret{0xab}
	for _, v := range []any{s, &s, LinkSecret{s}, &LinkSecret{s}, RecordKey{Key: s}, &RecordKey{Key: s}, s.Link(LinkName{}), *s.Link(LinkName{}), RecordSecret{s}, &RecordSecret{s}, struct{ S Secret }{s}} {
		for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
			assert.NotContains(t, fmt.Sprintf(format, v), "171", format)
			assert.NotContains(t, fmt.Sprintf(format, v), "0xab", format)
		}
	}
}

// A wiped secret has no byte left. A wipe of no secret does nothing.
func TestWipe(t *testing.T) {
	s, err := SessionSecret(wire.Token{1}, Binding{2})
	require.NoError(t, err)
	l := s.Link(LinkName{})
	r := l.Records(ConnNonce{}, ConnNonce{}, 0)
	k := r.Key(ToTarget, 0)
	require.True(t, *s != Secret{} && *l != LinkSecret{} && *r != RecordSecret{} && *k != RecordKey{})
	s.Wipe()
	l.Wipe()
	r.Wipe()
	k.Wipe()
	assert.True(t, *s == Secret{} && *l == LinkSecret{} && *r == RecordSecret{} && *k == RecordKey{})
	to, from := make([]byte, 2), []byte{1, 2}
	take(to, from)
	assert.Equal(t, []byte{1, 2, 0, 0}, append(to, from...))
	(*Secret)(nil).Wipe()
	(*LinkSecret)(nil).Wipe()
	(*RecordSecret)(nil).Wipe()
	(*RecordKey)(nil).Wipe()
}
