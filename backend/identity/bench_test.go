package identity

import (
	"crypto"
	"crypto/elliptic"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkIdentity is what an identity adds to a handshake at one end: one proof made, one checked.
func BenchmarkIdentity(b *testing.B) {
	ca := newAuthority(b, "ca")
	for name, key := range map[string]crypto.Signer{"ed25519": ed25519Key(b), "p256": ecdsaKey(b, elliptic.P256()), "p384": ecdsaKey(b, elliptic.P384()), "rsa2048": rsaKey(b, 2048)} {
		cert, private := ca.issue(key)
		o := newBench(b).pemFiles(ca.pem(), cert, private).open()
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				id, err := o.Prove(Initiator, binding, ends, nil)
				require.NoError(b, err)
				_, err = o.Check(Initiator, binding, ends, &id)
				require.NoError(b, err)
			}
		})
	}
}
