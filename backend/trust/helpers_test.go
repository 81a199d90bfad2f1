package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// The connection of all tests.
var (
	binding = Binding{1, 2, 3}
	ends    = Ends{Initiator: wire.Pin{4}, Target: wire.Pin{5}}
)

// start is far enough from the times of the tests' files that stamps count as stable. It is the same in every process:
// FuzzCheck's workers make the same certificates.
var start = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

func generate[K any](t testing.TB, make func() (K, error)) K {
	k, err := make()
	require.NoError(t, err)
	return k
}

func ed25519Key(t testing.TB) crypto.Signer {
	return generate(t, func() (crypto.Signer, error) { _, k, err := ed25519.GenerateKey(rand.Reader); return k, err })
}

func ecdsaKey(t testing.TB, curve elliptic.Curve) crypto.Signer {
	return generate(t, func() (crypto.Signer, error) { return ecdsa.GenerateKey(curve, rand.Reader) })
}

// rsaKeys are made once: a starved machine takes seconds for one.
var rsaKeys sync.Map

func rsaKey(t testing.TB, bits int) crypto.Signer {
	k, ok := rsaKeys.Load(bits)
	if !ok {
		k = generate(t, func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, bits) })
		rsaKeys.Store(bits, k)
	}
	return k.(crypto.Signer)
}

// authority issues certificates.
type authority struct {
	t     testing.TB
	cert  *x509.Certificate
	key   crypto.Signer
	above string // PEM of the chain between this one and its root
}

// template is a certificate of any kind around start.
func template(name string) *x509.Certificate {
	return &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name}, BasicConstraintsValid: true,
		NotBefore: start.Add(-24 * time.Hour), NotAfter: start.Add(24 * time.Hour)}
}

func newAuthority(t testing.TB, name string) *authority {
	return authorityOf(t, name, ecdsaKey(t, elliptic.P256()))
}

func authorityOf(t testing.TB, name string, key crypto.Signer) *authority {
	a := &authority{t: t, key: key}
	c := template(name)
	c.IsCA = true
	a.cert = a.create(c, c, a.key)
	return a
}

func (a *authority) create(c, parent *x509.Certificate, key crypto.Signer) *x509.Certificate {
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), a.key)
	require.NoError(a.t, err)
	out, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	return out
}

func (a *authority) pem() string { return pemOf("CERTIFICATE", a.cert.Raw) }

func (a *authority) intermediate(name string, change ...func(*x509.Certificate)) *authority {
	c := template(name)
	c.IsCA = true
	for _, f := range change {
		f(c)
	}
	sub := &authority{t: a.t, key: ecdsaKey(a.t, elliptic.P384())}
	sub.cert = a.create(c, a.cert, sub.key)
	sub.above = sub.pem() + a.above
	return sub
}

// issue returns a certificate with its chain, and its key, both in PEM.
func (a *authority) issue(key crypto.Signer, change ...func(*x509.Certificate)) (cert, private string) {
	c := template("leaf")
	for _, f := range change {
		f(c)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	return pemOf("CERTIFICATE", a.create(c, a.cert, key).Raw) + a.above, pemOf("PRIVATE KEY", der)
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func withURI(t testing.TB, uris ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		for _, u := range uris {
			parsed, err := url.Parse(u)
			require.NoError(t, err)
			c.URIs = append(c.URIs, parsed)
		}
	}
}

func withDNS(names ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.DNSNames = names }
}

func valid(from, until time.Duration) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = start.Add(from), start.Add(until) }
}

// bench is an operator under test with its folder, clock and log.
type bench struct {
	written int // files
	t       testing.TB
	dir     string
	cfg     Config
	now     time.Time
	log     bytes.Buffer
	*Operator
}

func newBench(t testing.TB) *bench {
	b := &bench{t: t, dir: t.TempDir(), now: start}
	b.cfg.Now = func() time.Time { return b.now }
	b.cfg.Log = slog.New(slog.NewTextHandler(&b.log, nil))
	return b
}

func (b *bench) write(name, text string) string {
	file := filepath.Join(b.dir, name)
	require.NoError(b.t, os.WriteFile(file, []byte(text), 0o600))
	b.written++ // two writes within one tick of the kernel's clock have the same times
	at := time.Now().Add(time.Duration(b.written) * time.Microsecond)
	require.NoError(b.t, os.Chtimes(file, at, at))
	return file
}

func (b *bench) pemFiles(ca, cert, key string) *bench {
	b.cfg.CA, b.cfg.Cert, b.cfg.Key = b.write("ca.pem", ca), b.write("cert.pem", cert), b.write("key.pem", key)
	return b
}

func (b *bench) secretLines(lines ...string) *bench {
	b.cfg.SecretFile = b.write("secret", strings.Join(lines, "\n")+"\n")
	return b
}

func (b *bench) open() *bench {
	var err error
	b.Operator, err = Open(b.cfg)
	require.NoError(b.t, err)
	return b
}

// later moves the clock so far that the files are looked at again.
func (b *bench) later() *bench { b.now = b.now.Add(every); return b }

// warned counts the log's lines with a text.
func (b *bench) warned(text string) int { return strings.Count(b.log.String(), text) }

// certified opens an operator with a fresh Ed25519 certificate of a CA.
func certified(t testing.TB, ca *authority, change ...func(*x509.Certificate)) *bench {
	cert, key := ca.issue(ed25519Key(t), change...)
	return newBench(t).pemFiles(ca.pem(), cert, key).open()
}

// check has one engine check what another proves.
func check(t testing.TB, prover, checker *Operator, as Role) (Peer, error) {
	id, err := prover.Prove(as, binding, ends, nil)
	require.NoError(t, err)
	return checker.Check(as, binding, ends, &id)
}
