// Package certs makes an operator's files for tests: a CA, and certificates of it.
package certs

import (
	"crypto/ed25519"
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

	"gorail/backend/trust"
)

// Authority is a CA.
type Authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

// New makes a CA. Its files live as long as the test.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	a.key = key
	c := template()
	c.IsCA, c.Subject = true, pkix.Name{CommonName: "the CA"}
	a.cert, err = x509.ParseCertificate(a.sign(c, c, key))
	require.NoError(t, err)
	return a
}

func template() *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), BasicConstraintsValid: true, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
}

func (a *Authority) sign(c, parent *x509.Certificate, key ed25519.PrivateKey) []byte {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), a.key)
	require.NoError(a.t, err)
	return der
}

// Files makes a certificate with these names, and returns its files. A name with a colon is a URI, others are DNS names.
func (a *Authority) Files(names ...string) trust.Config {
	a.t.Helper()
	c := template()
	c.Subject = pkix.Name{CommonName: "a peer"}
	for _, name := range names {
		if !strings.Contains(name, ":") {
			c.DNSNames = append(c.DNSNames, name)
			continue
		}
		uri, err := url.Parse(name)
		require.NoError(a.t, err)
		c.URIs = append(c.URIs, uri)
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(a.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	dir := a.t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	return trust.Config{CA: write("ca.pem", "CERTIFICATE", a.cert.Raw), Cert: write("cert.pem", "CERTIFICATE", a.sign(c, a.cert, key)), Key: write("key.pem", "PRIVATE KEY", private)}
}

// Operator is the owner of such files.
func (a *Authority) Operator(names ...string) *trust.Operator {
	a.t.Helper()
	o, err := trust.Open(a.Files(names...))
	require.NoError(a.t, err)
	return o
}
