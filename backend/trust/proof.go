package trust

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"fmt"

	"gorail/backend/wire"
)

// exporter is the label of RFC 8446 section 7.5.
var exporter = fmt.Sprintf("EXPORTER-gorail-%d", wire.Version)

// Binding identifies one connection and the keys of both ends. A proof over it holds for no other connection.
type Binding [32]byte

// Ends are the pins of both ends of a connection.
type Ends struct{ Initiator, Target wire.Pin }

// Bind returns the binding of a TLS connection. The exporter alone does not cover the initiator's certificate.
func Bind(s *tls.ConnectionState, ends Ends, challenge wire.Nonce) (Binding, error) {
	context := sha256.New()
	context.Write(ends.Initiator[:])
	context.Write(ends.Target[:])
	context.Write(challenge[:])
	x, err := s.ExportKeyingMaterial(exporter, context.Sum(nil), len(Binding{}))
	if err != nil {
		return Binding{}, fmt.Errorf("TLS exporter: %w", err)
	}
	return Binding(x), nil
}

// OpenMac is the proof of an Open: its sender holds the token and has read this challenge.
func OpenMac(token wire.Token, challenge wire.Nonce, target wire.EngineID) wire.Mac {
	return mac(token[:], "open", challenge[:], target[:])
}

// HelloMac is the proof of a Hello: the holder of the token is the other end of this connection. An Open may have been
// relayed.
func HelloMac(token wire.Token, x Binding) wire.Mac { return mac(token[:], "hello", x[:]) }

// SessionSecret returns the secret of a session. Its Resumes keep it. The caller wipes it.
func SessionSecret(token wire.Token, x Binding) (*Secret, error) {
	extracted, err := hkdf.Extract(sha256.New, x[:], token[:])
	if err != nil {
		return nil, fmt.Errorf("session secret: %w", err)
	}
	var prk Secret
	defer prk.Wipe()
	take(prk[:], extracted)
	s := &Secret{}
	take(s[:], expand(&prk, len(s), "session"))
	return s, nil
}

// ResumeMac is the proof of a Resume: its sender began the session, and is the other end of this connection.
func (s *Secret) ResumeMac(x Binding, session, try, got uint64) wire.Mac {
	return mac(s[:], "resume", x[:], u64(session), u64(try), u64(got))
}

// ResumedMac is the proof of a Resumed.
func (s *Secret) ResumedMac(x Binding, got uint64) wire.Mac {
	return mac(s[:], "resumed", x[:], u64(got))
}
