package trust

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// FuzzCheck: an arbitrary Identity gives one of the package's errors, short enough for a Reject, and never a panic. Only
// the holder of the key and of the secret is accepted.
func FuzzCheck(f *testing.F) {
	seeded := func(n byte) crypto.Signer { return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize)) }
	ca := authorityOf(f, "ca", seeded(1))
	cert, key := ca.issue(seeded(2), withDNS("a.example"))
	o := newBench(f).pemFiles(ca.pem(), cert+ca.pem(), key).secretLines(strings.Repeat("s", 32)).open()
	id, err := o.Prove(Initiator, binding, ends, nil)
	require.NoError(f, err)
	f.Add(join(id.Chain), id.Algorithm, id.Signature, id.Secret)
	f.Add(join(id.Chain[:1]), id.Algorithm, id.Signature, id.Secret)
	f.Add(join([][]byte{id.Chain[1], id.Chain[0]}), id.Algorithm, id.Signature, id.Secret)
	f.Add(join(id.Chain), id.Algorithm, id.Signature, []byte{})
	f.Add(join(id.Chain), id.Algorithm, id.Signature[:9], id.Secret)
	f.Add([]byte{0, 0}, uint16(0), []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, chain []byte, algorithm uint16, signature, secret []byte) {
		got := wire.Identity{Chain: split(chain), Algorithm: algorithm, Signature: signature, Secret: secret}
		_, err := o.Check(Initiator, binding, ends, &got)
		if err == nil {
			require.True(t, bytes.Equal(signature, id.Signature) && bytes.Equal(secret, id.Secret) && bytes.Equal(got.Chain[0], id.Chain[0]))
			return
		}
		require.LessOrEqual(t, len(err.Error()), wire.MaxText)
		for _, known := range []error{ErrMissing, ErrChain, ErrDates, ErrSignature, ErrName, ErrSecret} {
			if strings.HasPrefix(err.Error(), known.Error()) {
				require.ErrorIs(t, err, known)
				return
			}
		}
		t.Fatal(err)
	})
}

// join and split turn a chain into the fuzzer's bytes and back: each certificate has its length in front.
func join(chain [][]byte) (out []byte) {
	for _, c := range chain {
		out = append(binary.BigEndian.AppendUint16(out, uint16(len(c))), c...)
	}
	return out
}

func split(data []byte) (chain [][]byte) {
	for len(data) >= 2 {
		n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
		chain, data = append(chain, data[2:2+n]), data[2+n:]
	}
	return chain
}
