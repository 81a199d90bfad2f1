package trust

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"time"

	"gorail/backend/wire"
)

// protocol is the ALPN name of the control channel: another protocol under the same keys would fail.
var protocol = fmt.Sprintf("gorail/%d", wire.Version)

// curves leave out the post-quantum exchange of Go's default. It costs 0.4 ms more CPU a handshake and 2.4 KB, and
// protects recorded traffic, which has no secrets of the user. With encryption of data it has the keys of them.
var (
	curves      = []tls.CurveID{tls.X25519, tls.CurveP256}
	postQuantum = []tls.CurveID{tls.X25519MLKEM768, tls.X25519, tls.CurveP256}
)

// Errors of a handshake. They are hints: any process that answers at an address can cause them.
var (
	ErrPin  = errors.New("the process at this address has another key than the peer's metadata says")
	ErrCert = errors.New("the other side must present exactly one certificate with an Ed25519 key")
)

// Key is the key of one engine. It lives as long as the engine and is never stored.
type Key struct {
	Pin         wire.Pin
	PostQuantum bool // key exchanges resist quantum computers; set before the first handshake
	cert        tls.Certificate
}

// NewKey makes a key and its self-signed certificate. Nobody checks the certificate's name and dates.
func NewKey() (*Key, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("engine key: %w", err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "gorail"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return nil, fmt.Errorf("engine key: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("engine key: %w", err)
	}
	return &Key{Pin: pinOf(leaf), cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf}}, nil
}

func pinOf(c *x509.Certificate) wire.Pin { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// config is what both sides have in common: TLS 1.3, no session tickets, our certificate, and the other side's
// certificate as a bare key. Chain, name and dates are not checked; the proof that the other side holds the key is.
func (k *Key) config() *tls.Config {
	prefer := curves
	if k.PostQuantum {
		prefer = postQuantum
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{protocol}, CurvePreferences: prefer,
		SessionTicketsDisabled: true, Certificates: []tls.Certificate{k.cert}, InsecureSkipVerify: true, ClientAuth: tls.RequireAnyClientCert}
}

// Client returns the configuration of an initiator, which accepts only the engine with this pin.
func (k *Key) Client(pin wire.Pin) *tls.Config {
	c := k.config()
	c.VerifyConnection = func(s tls.ConnectionState) error {
		got, err := PeerPin(&s)
		if err == nil && got != pin {
			err = ErrPin
		}
		return err
	}
	return c
}

// Server returns the configuration of a target. It accepts every well-formed key: a refusal with a reason is a Reject.
func (k *Key) Server() *tls.Config {
	c := k.config()
	c.VerifyConnection = func(s tls.ConnectionState) error {
		_, err := PeerPin(&s)
		return err
	}
	return c
}

// PeerPin returns the pin of the other side's key.
func PeerPin(s *tls.ConnectionState) (wire.Pin, error) {
	if len(s.PeerCertificates) != 1 || s.PeerCertificates[0].PublicKeyAlgorithm != x509.Ed25519 || s.NegotiatedProtocol != protocol {
		return wire.Pin{}, ErrCert
	}
	return pinOf(s.PeerCertificates[0]), nil
}
