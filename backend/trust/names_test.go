package trust

import (
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/limits"
	"gorail/backend/wire"
)

// TestPatterns: tls_peers over URIs and DNS names.
func TestPatterns(t *testing.T) {
	const spiffe = "spiffe://prod.example/ns/llm/sa/decode"
	for _, tt := range []struct {
		patterns, names string // separated by spaces
		want            bool
	}{
		{spiffe, spiffe, true},
		{"spiffe://prod.example/ns/*/sa/*", spiffe, true},
		{"spiffe://prod.example/ns/llm/sa/d?c*", spiffe, true},
		{"spiffe://prod.example/*", spiffe, false}, // * ends at a /
		{"spiffe://prod.example/ns/llm/sa", spiffe, false},
		{"spiffe://prod.example/ns/llm/sa/*", "spiffe://prod.example/ns/llm/sa/", true},
		{"spiffe://*/ns/llm/sa/decode", "spiffe://evil.example/x/ns/llm/sa/decode", false},
		{"spiffe://prod.example/ns/llm/sa/*", "spiffe://prod.example.evil/ns/llm/sa/x", false},
		{"*", spiffe, false},
		{"*", "a.b.example", true}, // dots are characters like others
		{"*.example", "a.b.example", true},
		{"*.example", "example", false},
		{"node[0-9].example", "node7.example", true},
		{"node[0-9].example", "node10.example", false},
		{"A.example", "a.example", false},
		{"x y.example", "a.example " + spiffe + " y.example", true}, // any pattern, any name
		{"a.example", "", false},
		{"[", "[", false},
	} {
		assert.Equal(t, tt.want, matches(strings.Fields(tt.patterns), strings.Fields(tt.names)), "%s: %s", tt.patterns, tt.names)
	}
}

// TestPeers: tls_peers decides; without it an engine warns once that all certificates of the CA are accepted.
func TestPeers(t *testing.T) {
	ca := newAuthority(t, "ca")
	const spiffe = "spiffe://prod.example/ns/llm/sa/decode"
	prover := certified(t, ca, withURI(t, spiffe), withDNS("decode-0.llm"))
	checker := certified(t, ca)
	assert.Equal(t, 1, checker.warned("every holder of a certificate of tls_ca is accepted"))
	peer, err := check(t, prover.Operator, checker.Operator, Initiator)
	require.NoError(t, err)
	assert.Equal(t, []string{spiffe, "decode-0.llm"}, peer.Names)
	assert.Equal(t, `"`+spiffe+`", "decode-0.llm"`, peer.String())

	for pattern, want := range map[string]bool{"spiffe://prod.example/ns/llm/sa/*": true, "decode-*": true, "spiffe://prod.example/ns/web/sa/*": false} {
		b := newBench(t)
		b.cfg.Peers = []string{"spiffe://prod.example/ns/db/sa/*", pattern}
		b.pemFiles(read(t, checker.cfg.CA), read(t, checker.cfg.Cert), read(t, checker.cfg.Key)).open()
		assert.Empty(t, b.log.String())
		peer, err := check(t, prover.Operator, b.Operator, Target)
		if want {
			assert.NoError(t, err)
			continue
		}
		assert.Zero(t, peer)
		assert.ErrorIs(t, err, ErrName)
		assert.ErrorContains(t, err, `the target is "`+spiffe+`", "decode-0.llm", and tls_peers of the initiator has no pattern for it`)
		assert.NotContains(t, err.Error(), "/ns/web", "the peer reads this, too")
		_, err = check(t, checker.Operator, b.Operator, Target)
		assert.ErrorIs(t, err, ErrName, "a certificate without names")
	}
}

// TestDNSNameLikeURI: a DNS name is not compared with what is meant for URIs.
func TestDNSNameLikeURI(t *testing.T) {
	ca := newAuthority(t, "ca")
	prover := certified(t, ca, withDNS("spiffe://prod.example/ns/llm/sa/decode", "gorail:decode", "good.example"))
	peer, err := check(t, prover.Operator, certified(t, ca).Operator, Initiator)
	require.NoError(t, err)
	assert.Equal(t, []string{"good.example"}, peer.Names)
}

func TestNamed(t *testing.T) {
	for _, tt := range []struct {
		names, agent string
		want         bool
	}{
		{"gorail:decode-0", "decode-0", true},
		{"gorail:decode-0", "decode-1", false},
		{"gorail:decode-0", "gorail:decode-0", false},
		{"gorail:a%20b", "a b", true},
		{"gorail:a%20b", "a%20b", false},
		{"gorail:a/b", "a/b", true},
		{"gorail:", "", false},
		{"decode-0.llm", "decode-0.llm", true},
		{"decode-0.llm", "Decode-0.llm", false},
		{"*.llm", "decode-0.llm", false}, // no wildcards: a name is one agent's
		{"spiffe://a/decode-0", "spiffe://a/decode-0", false},
		{"spiffe://a/x gorail:y z.example", "z.example", true},
		{"", "", false},
	} {
		assert.Equal(t, tt.want, Peer{Names: strings.Fields(tt.names)}.Named(tt.agent), "%s: %s", tt.names, tt.agent)
	}
	// As certificates have them.
	ca := newAuthority(t, "ca")
	peer, err := check(t, certified(t, ca, withURI(t, "gorail:decode%200")).Operator, certified(t, ca).Operator, Initiator)
	require.NoError(t, err)
	assert.True(t, peer.Named("decode 0"))
}

// An identity is that of all names, in any order, and of nothing else of a certificate. A secret gives none.
func TestID(t *testing.T) {
	until := start.Add(time.Hour)
	id := Peer{Names: []string{"spiffe://a/b", "c"}, Until: until}.ID()
	assert.NotZero(t, id)
	assert.Equal(t, id, Peer{Names: []string{"c", "spiffe://a/b"}, Subject: "CN=other", Until: until.Add(time.Hour)}.ID(), "renewed")
	seen := map[limits.ID]bool{id: true}
	for _, p := range []Peer{{Names: []string{"spiffe://a/b"}}, {Names: []string{"c"}}, {Names: []string{"spiffe://a/bc"}}, {Names: []string{"spiffe://a/", "bc"}},
		{Names: []string{"CN=c"}}, {Subject: "CN=c"}, {Subject: "CN=d"}, {}} {
		p.Until = until
		assert.False(t, seen[p.ID()], "%+v", p)
		seen[p.ID()] = true
		assert.NotZero(t, p.ID())
	}
	assert.Zero(t, Peer{}.ID())
	assert.Equal(t, `"CN=c"`, Peer{Subject: "CN=c"}.String())

	ca := newAuthority(t, "ca")
	certain := func(change ...func(*x509.Certificate)) limits.ID {
		b := newBench(t)
		cert, key := ca.issue(ed25519Key(t), change...)
		p, err := check(t, b.pemFiles(ca.pem(), cert, key).open().Operator, certified(t, ca).Operator, Initiator)
		require.NoError(t, err)
		return p.ID()
	}
	assert.Equal(t, certain(withDNS("c")), certain(withDNS("c"), valid(-time.Hour, time.Hour)))
	assert.NotEqual(t, certain(withDNS("c")), certain())
	secret := newBench(t).secretLines(strings.Repeat("s", 32)).open()
	p, err := check(t, secret.Operator, secret.Operator, Initiator)
	require.NoError(t, err)
	assert.Zero(t, p.ID())
}

// TestErrorFitsReject: no certificate makes an error too long for a Reject, or breaks its lines.
func TestErrorFitsReject(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, strings.Repeat("\n\"issuer", 200))
	var many []string
	for i := range 50 {
		many = append(many, fmt.Sprintf("%d\n%s", i, strings.Repeat("\"", 150)))
	}
	b := newBench(t)
	cert, key := ca.issue(ed25519Key(t))
	b.cfg.Peers = []string{"no"}
	checker := b.pemFiles(ca.pem(), cert, key).open()
	for _, prover := range []*bench{certified(t, ca, withDNS(many...)), certified(t, other, withDNS(many...)),
		certified(t, ca, withDNS(many...), valid(Slack*2, Slack*3)),
		certified(t, ca, func(c *x509.Certificate) { c.Subject.CommonName = many[0] }),
		certified(t, other, func(c *x509.Certificate) { c.Subject.CommonName = strings.Repeat("é", 2000) })} {
		_, err := check(t, prover.Operator, checker.Operator, Initiator)
		require.Error(t, err)
		assert.LessOrEqual(t, len(err.Error()), wire.MaxText, err)
		assert.NotContains(t, err.Error(), "\n")
	}
}
