package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"gorail/backend/wire"
)

// Errors of Check. Their texts say "initiator" and "target", and are the same at both ends: a Reject carries them. They
// have names of options and of the refused certificate, and nothing else of this host but its clock.
var (
	ErrMissing   = errors.New("no proof of the operator's identity")
	ErrChain     = errors.New("the certificate does not belong to an accepted CA")
	ErrDates     = errors.New("the certificate's dates do not fit")
	ErrSignature = errors.New("the certificate's key has not signed this connection")
	ErrName      = errors.New("the certificate's names are not accepted")
	ErrSecret    = errors.New("the secrets differ")
)

// Check checks a peer's proof for one connection. An error wraps one of the errors above. It says which peer, which
// name or date is wrong, and which option to set at which end.
func (o *Operator) Check(of Role, x Binding, ends Ends, id *wire.Identity) (peer Peer, err error) {
	if o == nil {
		return peer, nil
	}
	defer func() {
		if p := recover(); p != nil { // package x509 reads what a peer sent; a panic would end the host process
			peer, err = Peer{}, fmt.Errorf("%w: the %s's certificates cannot be read: panic: %v", ErrChain, of, p)
		}
	}()
	p := o.look()
	if p.credentials != nil {
		if peer, err = o.checkCertificate(p.credentials, of, statement(identityLabel, of, x, ends), id); err != nil {
			return Peer{}, err
		}
	}
	if len(p.secrets) > 0 {
		if len(id.Secret) == 0 {
			return Peer{}, fmt.Errorf("%w: the %s has no secret, and secret_file of the %s demands one; set secret_file at the %s, too",
				ErrMissing, of, of.other(), of)
		}
		if matching(p.secrets, of, x, ends, id.Secret) < 0 {
			return Peer{}, wrongSecret(of)
		}
	}
	return peer, nil
}

func wrongSecret(of Role) error {
	return fmt.Errorf("%w: no line of secret_file at the %s matches the %s's; add the first line of the file at the %s to the file at the %s",
		ErrSecret, of.other(), of, of, of.other())
}

func (o *Operator) checkCertificate(own *credentials, of Role, message []byte, id *wire.Identity) (Peer, error) {
	if len(id.Chain) == 0 {
		return Peer{}, fmt.Errorf("%w: the %s has no certificate, and tls_ca of the %s demands one; set tls_ca, tls_cert and tls_key at the %s, too",
			ErrMissing, of, of.other(), of)
	}
	chain, err := parseChain(id.Chain)
	if err != nil {
		return Peer{}, fmt.Errorf("%w: the %s's chain: %s; check its tls_cert", ErrChain, of, clip(err.Error(), shownError))
	}
	leaf := chain[0]
	peer := Peer{Names: namesOf(leaf), Subject: leaf.Subject.String(), Until: leaf.NotAfter}
	who := fmt.Sprintf("the %s's certificate for %s", of, title(leaf))
	now := o.cfg.Now()
	if err := own.verify(chain, now); err != nil {
		if dates := wrongDates(chain, now); dates != "" {
			return Peer{}, fmt.Errorf("%w: %s %s, and the clock of the %s says %s; set the clocks by NTP, or renew tls_cert at the %s",
				ErrDates, who, dates, of.other(), rfc3339(now), of)
		}
		return Peer{}, fmt.Errorf("%w: %s: %s; add its CA to tls_ca at the %s, or its intermediates to tls_cert at the %s",
			ErrChain, who, clip(err.Error(), shownError), of.other(), of)
	}
	if !signed(leaf.PublicKey, tls.SignatureScheme(id.Algorithm), message, id.Signature) {
		text := "the signature is of another key or another connection; check that no proxy ends TLS between the hosts"
		if _, err := algorithmOf(leaf.PublicKey); err != nil {
			text = err.Error()
		}
		return Peer{}, fmt.Errorf("%w: %s: %s", ErrSignature, who, text)
	}
	if len(o.cfg.Peers) > 0 && !matches(o.cfg.Peers, peer.Names) {
		return Peer{}, fmt.Errorf("%w: the %s is %s, and tls_peers of the %s has no pattern for it; add one there", ErrName, of, peer, of.other())
	}
	return peer, nil
}

// shownError bounds the bytes that package x509 adds to an error: it quotes the peer's text.
const shownError = 240

// wrongDates describes the first certificate of a chain whose dates are wrong by more than Slack, "" for none.
func wrongDates(chain []*x509.Certificate, now time.Time) string {
	for i, c := range chain {
		what := "is valid"
		if i > 0 {
			what = "has an intermediate, " + title(c) + ", valid"
		}
		switch {
		case now.Add(Slack).Before(c.NotBefore):
			return fmt.Sprintf("%s from %s by the CA's clock", what, rfc3339(c.NotBefore))
		case now.Add(-Slack).After(c.NotAfter):
			return fmt.Sprintf("%s until %s by the CA's clock", what, rfc3339(c.NotAfter))
		}
	}
	return ""
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339) }
