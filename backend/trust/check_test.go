package trust

import (
	"crypto"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// TestAlgorithms: every algorithm proves in both roles, beside a CA of another algorithm. Others are refused when the
// files are read, and if a peer uses them.
func TestAlgorithms(t *testing.T) {
	ca := newAuthority(t, "ca")
	checker := certified(t, ca)
	for name, tt := range map[string]struct {
		key       crypto.Signer
		algorithm tls.SignatureScheme
	}{
		"Ed25519":     {ed25519Key(t), tls.Ed25519},
		"ECDSA P-256": {ecdsaKey(t, elliptic.P256()), tls.ECDSAWithP256AndSHA256},
		"ECDSA P-384": {ecdsaKey(t, elliptic.P384()), tls.ECDSAWithP384AndSHA384},
		"RSA 2048":    {rsaKey(t, 2048), tls.PSSWithSHA256},
	} {
		cert, key := ca.issue(tt.key)
		prover := newBench(t).pemFiles(ca.pem(), cert, key).open()
		for _, as := range []Role{Initiator, Target} {
			id, err := prover.Prove(as, binding, ends, nil)
			require.NoError(t, err, name)
			assert.Equal(t, uint16(tt.algorithm), id.Algorithm, name)
			peer, err := checker.Check(as, binding, ends, &id)
			require.NoError(t, err, name)
			assert.Equal(t, start.Add(24*time.Hour).UTC(), peer.Until)

			id.Signature[len(id.Signature)/2] ^= 1
			_, err = checker.Check(as, binding, ends, &id)
			assert.ErrorIs(t, err, ErrSignature, name)
			id.Signature[len(id.Signature)/2] ^= 1
			for _, other := range []tls.SignatureScheme{0, tls.Ed25519, tls.ECDSAWithP256AndSHA256, tls.PKCS1WithSHA256, tls.PSSWithSHA512} {
				if other != tt.algorithm {
					id.Algorithm = uint16(other)
					_, err = checker.Check(as, binding, ends, &id)
					assert.ErrorIs(t, err, ErrSignature, "%s as %s", name, other)
				}
			}
		}
	}
	for _, bad := range []crypto.Signer{rsaKey(t, 1024), ecdsaKey(t, elliptic.P521())} {
		cert, key := ca.issue(bad)
		b := newBench(t).pemFiles(ca.pem(), cert, key)
		_, err := Open(b.cfg)
		require.ErrorIs(t, err, ErrConfig)
		assert.ErrorContains(t, err, "tls_cert="+b.cfg.Cert+": a certificate's key must be Ed25519, ECDSA P-256 or P-384, or RSA of 2048 to 4096 bits")

		block, _ := pem.Decode([]byte(cert))
		id := wire.Identity{Chain: [][]byte{block.Bytes}, Algorithm: uint16(tls.PSSWithSHA256)}
		if id.Signature, err = sign(bad, tls.PSSWithSHA256, statement(identityLabel, Initiator, binding, ends)); err == nil {
			_, err = checker.Check(Initiator, binding, ends, &id)
			assert.ErrorIs(t, err, ErrChain)
			assert.ErrorContains(t, err, "RSA of 2048")
		}
	}
}

// TestHolds: a proof holds for one role, one connection and its two keys.
func TestHolds(t *testing.T) {
	ca := newAuthority(t, "ca")
	secret := strings.Repeat("s", 32)
	certificate := certified(t, ca)
	member := newBench(t).secretLines(secret).open()
	for name, tt := range map[string]struct {
		o     *Operator
		wrong error
	}{"certificate": {certificate.Operator, ErrSignature}, "secret": {member.Operator, ErrSecret}} {
		id, err := tt.o.Prove(Initiator, binding, ends, nil)
		require.NoError(t, err)
		_, err = tt.o.Check(Initiator, binding, ends, &id)
		require.NoError(t, err, name)
		for what, err := range map[string]error{
			"role":    second(tt.o.Check(Target, binding, ends, &id)),
			"binding": second(tt.o.Check(Initiator, Binding{9}, ends, &id)),
			"pin":     second(tt.o.Check(Initiator, binding, Ends{Initiator: wire.Pin{9}, Target: ends.Target}, &id)),
			"pin 2":   second(tt.o.Check(Initiator, binding, Ends{Initiator: ends.Initiator, Target: wire.Pin{9}}, &id)),
			"swapped": second(tt.o.Check(Initiator, binding, Ends{Initiator: ends.Target, Target: ends.Initiator}, &id)),
		} {
			assert.ErrorIs(t, err, tt.wrong, "%s: %s", name, what)
		}
	}
	// Another key of the same CA signs for a stolen certificate.
	id, err := certificate.Prove(Target, binding, ends, nil)
	require.NoError(t, err)
	thief, err := certified(t, ca).Prove(Target, binding, ends, nil)
	require.NoError(t, err)
	thief.Chain = id.Chain
	_, err = certificate.Check(Target, binding, ends, &thief)
	assert.ErrorIs(t, err, ErrSignature)
}

func second(_ Peer, err error) error { return err }

// TestChains: a chain leads to a CA of the file, through intermediates that the peer sends.
func TestChains(t *testing.T) {
	root, other := newAuthority(t, "root"), newAuthority(t, "other")
	sub := root.intermediate("sub").intermediate("subsub")
	cert, key := sub.issue(ed25519Key(t), withDNS("a.example"))
	prover := newBench(t).pemFiles(root.pem(), cert, key).open()
	assert.Zero(t, prover.warned("our own certificate"))
	checker := certified(t, root)
	peer, err := check(t, prover.Operator, checker.Operator, Initiator)
	require.NoError(t, err)
	assert.Equal(t, []string{"a.example"}, peer.Names)

	both := certified(t, other)
	both.pemFiles(other.pem()+"text between\n"+root.pem(), read(t, both.cfg.Cert), read(t, both.cfg.Key)).open()
	_, err = check(t, prover.Operator, both.Operator, Initiator)
	assert.NoError(t, err, "one of two CAs")

	id, err := prover.Prove(Initiator, binding, ends, nil)
	require.NoError(t, err)
	id.Chain = id.Chain[:2]
	_, err = checker.Check(Initiator, binding, ends, &id)
	assert.ErrorIs(t, err, ErrChain, "without the intermediate below the root")
	assert.ErrorContains(t, err, `the initiator's certificate for "a.example": x509: certificate signed by unknown authority`)
	assert.ErrorContains(t, err, "add its CA to tls_ca at the target, or its intermediates to tls_cert at the initiator")

	_, err = check(t, certified(t, other).Operator, checker.Operator, Target)
	assert.ErrorIs(t, err, ErrChain, "another CA")
	_, err = checker.Check(Target, binding, ends, &wire.Identity{Chain: [][]byte{[]byte("no DER")}})
	assert.ErrorIs(t, err, ErrChain)
	leafAsCA := *sub
	leafAsCA.cert, leafAsCA.key = parsedPEM(t, cert), prover.held.Load().key
	leafAsCA.above = cert
	cert, key = leafAsCA.issue(ed25519Key(t))
	_, err = check(t, newBench(t).pemFiles(root.pem(), cert, key).open().Operator, checker.Operator, Target)
	assert.ErrorIs(t, err, ErrChain, "issued by a leaf")
}

// TestHugeKey: a key that makes a check slow is refused before it is used, wherever it is in a chain.
func TestHugeKey(t *testing.T) {
	ca := newAuthority(t, "ca")
	n := new(big.Int).SetBit(big.NewInt(1), mostRSA, 1)
	der, err := x509.CreateCertificate(rand.Reader, template("huge"), ca.cert, &rsa.PublicKey{N: n, E: 65537}, ca.key)
	require.NoError(t, err)
	checker := certified(t, ca)
	id, err := checker.Prove(Initiator, binding, ends, nil)
	require.NoError(t, err)
	for _, chain := range [][][]byte{{der}, {id.Chain[0], der}} {
		id.Chain = chain
		_, err = checker.Check(Initiator, binding, ends, &id)
		assert.ErrorIs(t, err, ErrChain)
		assert.ErrorContains(t, err, "RSA of 2048 to 4096 bits")
	}
}

// TestOneKeyTwice: a chain with several certificates of one key makes a check try all orders, and is refused before.
func TestOneKeyTwice(t *testing.T) {
	ca := newAuthority(t, "ca")
	checker := certified(t, ca)
	id, err := checker.Prove(Initiator, binding, ends, nil)
	require.NoError(t, err)
	id.Chain = append(id.Chain, ca.cert.Raw, ca.cert.Raw)
	_, err = checker.Check(Initiator, binding, ends, &id)
	assert.ErrorIs(t, err, ErrChain)
	assert.ErrorContains(t, err, "two certificates for one key")
}

// TestDates: dates count with five minutes of tolerance, of leaf and intermediate; the error has both clocks.
func TestDates(t *testing.T) {
	ca := newAuthority(t, "ca")
	checker := certified(t, ca)
	for _, tt := range []struct {
		from, until time.Duration
		ok          bool
		text        string
	}{
		{0, time.Hour, true, ""},
		{-time.Hour, 0, true, ""},
		{-time.Hour, -Slack, true, ""},
		{-time.Hour, -Slack - time.Second, false, "is valid until " + rfc3339(start.Add(-Slack-time.Second))},
		{Slack, time.Hour, true, ""},
		{Slack + time.Second, time.Hour, false, "is valid from " + rfc3339(start.Add(Slack+time.Second))},
	} {
		leaf := certified(t, ca, valid(tt.from, tt.until), withDNS("late.example"))
		cert, key := ca.intermediate("sub", valid(tt.from, tt.until)).issue(ed25519Key(t), withDNS("below.example"))
		below := newBench(t).pemFiles(ca.pem(), cert, key).open()
		for who, b := range map[string]*bench{`certificate for "late.example" `: leaf, `has an intermediate, "CN=sub", `: below} {
			_, err := check(t, b.Operator, checker.Operator, Initiator)
			if assert.Equal(t, boolInt(!tt.ok), b.warned("our own certificate"), "an engine warns of its own"); tt.ok {
				assert.NoError(t, err, tt)
				continue
			}
			require.ErrorIs(t, err, ErrDates)
			assert.ErrorContains(t, err, who)
			assert.ErrorContains(t, err, strings.TrimPrefix(tt.text, "is ")+" by the CA's clock, and the clock of the target says "+rfc3339(start))
			assert.ErrorContains(t, err, "renew tls_cert at the initiator")
		}
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func parsedPEM(t *testing.T, text string) *x509.Certificate {
	block, _ := pem.Decode([]byte(text))
	require.NotNil(t, block)
	c, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return c
}

// TestUsages: certificates for clients alone, for servers alone or for anything prove both roles.
func TestUsages(t *testing.T) {
	ca := newAuthority(t, "ca")
	checker := certified(t, ca)
	for _, usage := range [][]x509.ExtKeyUsage{nil, {x509.ExtKeyUsageClientAuth}, {x509.ExtKeyUsageServerAuth}, {x509.ExtKeyUsageCodeSigning}} {
		prover := certified(t, ca, func(c *x509.Certificate) { c.ExtKeyUsage = usage })
		for _, as := range []Role{Initiator, Target} {
			_, err := check(t, prover.Operator, checker.Operator, as)
			assert.NoError(t, err, usage)
		}
	}
}
