package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// authority is a certificate authority of an operator.
type authority struct {
	t    *testing.T
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.key, a.cert = a.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// issue writes NAME.crt and NAME.key.
func (a *authority) issue(name string, c *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	a.write(name+".crt", "CERTIFICATE", der)
	a.write(name+".key", "PRIVATE KEY", private)
	cert, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	return key, cert
}

func (a *authority) write(file, kind string, der []byte) {
	a.t.Helper()
	path := filepath.Join(a.dir, file)
	require.NoError(a.t, os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	require.NoError(a.t, os.Rename(path+".new", path))
}

// agent starts an agent whose certificate is for an agent of the given name.
func (a *authority) agent(name, certified string) *worker.Agent {
	a.t.Helper()
	a.renew(certified)
	file := func(f string) string { return filepath.Join(a.dir, f) }
	return start(a.t, name, params("tls_ca", file("ca.crt"), "tls_cert", file(certified+".crt"), "tls_key", file(certified+".key"),
		"peer_names", "certified", "require_identity", "on", "log", "info"))
}

func (a *authority) renew(certified string) {
	a.issue(certified, &x509.Certificate{URIs: []*url.URL{{Scheme: "gorail", Opaque: certified}}})
}

// TestIdentity: two agents prove their operator's identity, and go on while their certificates are replaced. An agent of
// another operator, one with the certificate of another agent and one without any are refused by name.
func TestIdentity(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t), newAuthority(t)
	tgt := ours.agent("bob", "bob")
	tgt.Polling(true)
	b := tgt.Buffer(1<<20, seedB)
	transfer := func(ini *worker.Agent) *worker.Xfer {
		a := ini.Buffer(1<<20, seedA)
		ini.Learn(tgt)
		return ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	}
	alice := ours.agent("alice", "alice")
	x := transfer(alice)
	x.Do(limit)
	b.Want(seedA)
	for _, name := range []string{"alice", "bob"} {
		ours.renew(name)
	}
	require.True(t, worker.Eventually(limit, func() bool {
		x.Do(limit)
		return strings.Contains(tgt.Output(), "control session resumed")
	}), "the identities are proved again")
	for _, refused := range []struct {
		ini *worker.Agent
		why string
	}{{theirs.agent("carol", "carol"), "tls_ca"}, {ours.agent("dave", "alice"), "peer_names"}} {
		y := transfer(refused.ini)
		s := y.Try(limit)
		require.True(t, s.Failed(), refused.ini.Name)
		says(t, refused.ini.Worker, "identity is not proved")
		says(t, tgt.Worker, "peer refused", refused.ini.Name, refused.why)
	}
	none := start(t, "eve")
	_, err := none.Load(tgt.Metadata())
	require.Error(t, err)
	says(t, none.Worker, "secret_file")
	x.Do(limit)
	b.Want(seedA)
}
