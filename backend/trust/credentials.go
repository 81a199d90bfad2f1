package trust

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"gorail/backend/wire"
)

// Slack is how much the clocks of two hosts and of the CA may differ.
const Slack = 5 * time.Minute

// credentials are a certificate with its key, and the CAs of peers.
type credentials struct {
	roots     *x509.CertPool
	chain     [][]byte // DER, our own first
	parsed    []*x509.Certificate
	key       crypto.Signer
	algorithm tls.SignatureScheme
}

// parseCredentials reads tls_ca, tls_cert and tls_key, and checks that they fit.
func parseCredentials(files []file, texts [][]byte) (*credentials, error) {
	for i, f := range files {
		if err := wholePEM(texts[i]); err != nil {
			return nil, fmt.Errorf("%s=%s: %w", f.option, f.path, err)
		}
	}
	ca, cert, key := files[0], files[1], files[2]
	roots, err := parsePool(texts[0])
	if err != nil {
		return nil, fmt.Errorf("%s=%s: %w", ca.option, ca.path, err)
	}
	pair, err := tls.X509KeyPair(texts[1], texts[2])
	if err != nil {
		return nil, fmt.Errorf("%s=%s and %s=%s do not fit together (our own certificate comes first in tls_cert): %w", cert.option, cert.path, key.option, key.path, err)
	}
	c := &credentials{roots: roots, chain: pair.Certificate}
	if c.parsed, err = parseChain(c.chain); err != nil {
		return nil, fmt.Errorf("%s=%s: %w", cert.option, cert.path, err)
	}
	if c.algorithm, err = algorithmOf(c.parsed[0].PublicKey); err != nil {
		return nil, fmt.Errorf("%s=%s: %w", cert.option, cert.path, err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s=%s: the key cannot sign", key.option, key.path)
	}
	c.key = signer
	return c, nil
}

// wholePEM finds a file that is only half written: a block that begins and does not end is no block to package pem.
func wholePEM(text []byte) error {
	begun := bytes.Count(text, []byte("-----BEGIN "))
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		begun--
	}
	if begun != 0 {
		return errors.New("a PEM block is damaged or cut off; write the file whole, and then rename it into place")
	}
	return nil
}

func parsePool(text []byte) (*x509.CertPool, error) {
	pool, n := x509.NewCertPool(), 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		pool.AddCert(c)
		n++
	}
	if n == 0 {
		return nil, errors.New("no certificate in PEM form")
	}
	return pool, nil
}

// parseChain parses certificates within the limits of a wire.Identity, the holder's first.
func parseChain(chain [][]byte) ([]*x509.Certificate, error) {
	if len(chain) > wire.MaxChain {
		return nil, fmt.Errorf("%d certificates, at most %d", len(chain), wire.MaxChain)
	}
	out := make([]*x509.Certificate, len(chain))
	for i, der := range chain {
		if len(der) > wire.MaxCert {
			return nil, fmt.Errorf("a certificate of %d bytes, at most %d", len(der), wire.MaxCert)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		if _, err := algorithmOf(c.PublicKey); err != nil { // of all, since each costs a check
			return nil, err
		}
		for _, o := range out[:i] { // package x509 would try the paths in every order
			if bytes.Equal(o.RawSubject, c.RawSubject) && bytes.Equal(o.RawSubjectPublicKeyInfo, c.RawSubjectPublicKeyInfo) {
				return nil, fmt.Errorf("two certificates for one key of %s", title(c))
			}
		}
		out[i] = c
	}
	return out, nil
}

// verify checks a chain against the CAs. Dates count if they do now, or did or will within Slack.
func (c *credentials) verify(chain []*x509.Certificate, now time.Time) error {
	between := x509.NewCertPool()
	for _, i := range chain[1:] {
		between.AddCert(i)
	}
	var first error
	for _, at := range []time.Time{now, now.Add(-Slack), now.Add(Slack)} {
		// Whatever the certificate is for: SPIFFE's are for clients and servers, others often for one of them.
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: c.roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}
