package trust

import (
	"encoding/binary"
	"fmt"

	"gorail/backend/wire"
)

// Role is an engine's part in a session.
type Role uint8

// The roles.
const (
	Initiator Role = iota + 1
	Target
)

// String returns the role's name: statements have it, and errors.
func (r Role) String() string {
	if r == Initiator {
		return "initiator"
	}
	return "target"
}

func (r Role) other() Role { return Initiator + Target - r }

var identityLabel = fmt.Sprintf("gorail identity %d", wire.Version)

// statement is what a proof is over. Each part has its length in front, so that no two lists of parts give the same
// bytes.
func statement(label string, as Role, x Binding, ends Ends) (out []byte) {
	for _, p := range [][]byte{[]byte(label), []byte(as.String()), x[:], ends.Initiator[:], ends.Target[:]} {
		out = append(binary.BigEndian.AppendUint64(out, uint64(len(p))), p...)
	}
	return out
}

// Prove returns the proof that this engine is our operator's, for one connection. of is the initiator's proof that a
// target answers, already checked; nil for an initiator. A target answers with the line of secret_file that the
// initiator used. Chain belongs to the Operator and is only read.
func (o *Operator) Prove(as Role, x Binding, ends Ends, of *wire.Identity) (wire.Identity, error) {
	var id wire.Identity
	if o == nil {
		return id, nil
	}
	p := o.look()
	if p.credentials != nil {
		signature, err := sign(p.key, p.algorithm, statement(identityLabel, as, x, ends))
		if err != nil {
			return wire.Identity{}, fmt.Errorf("sign with tls_key=%s: %w", o.cfg.Key, err)
		}
		id.Chain, id.Algorithm, id.Signature = p.chain, uint16(p.algorithm), signature
	}
	if len(p.secrets) > 0 {
		line := 0
		if of != nil {
			if line = matching(p.secrets, as.other(), x, ends, of.Secret); line < 0 {
				return wire.Identity{}, wrongSecret(as.other())
			}
		}
		id.Secret = secretMac(p.secrets[line], as, x, ends)
	}
	return id, nil
}
