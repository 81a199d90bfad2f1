package trust

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"gorail/backend/wire"
)

// Secret is a key that must not leave the process.
type Secret [32]byte

// String hides the secret from logs.
func (Secret) String() string { return "(secret)" }

// GoString hides the secret from %#v.
func (Secret) GoString() string { return "(secret)" }

// NewSecret draws a secret that nobody else has.
func NewSecret() *Secret {
	s := &Secret{}
	_, _ = rand.Read(s[:]) // never fails
	return s
}

// Wipe overwrites the secret. Its owner calls it when nothing needs the secret any more. Go may have moved or copied the
// bytes before. s may be nil.
func (s *Secret) Wipe() {
	if s != nil {
		clear(s[:])
	}
}

// take copies a derived key into its place, and wipes the other copy.
func take(to, from []byte) {
	copy(to, from)
	clear(from)
}

// mac is HMAC-SHA256 over a label and parts. Each has its length in front, so that no two lists give the same bytes.
func mac(key []byte, label string, parts ...[]byte) wire.Mac {
	h := hmac.New(sha256.New, key)
	for _, p := range append([][]byte{[]byte("gorail " + label)}, parts...) {
		h.Write(u64(uint64(len(p))))
		h.Write(p)
	}
	return wire.Mac(h.Sum(nil))
}

// expand is HKDF-Expand with the same encoding of its parts.
func expand(key *Secret, length int, label string, parts ...[]byte) []byte {
	var info []byte
	for _, p := range append([][]byte{[]byte("gorail " + label)}, parts...) {
		info = append(append(info, u64(uint64(len(p)))...), p...)
	}
	out, err := hkdf.Expand(sha256.New, key[:], string(info), length)
	if err != nil {
		panic(err) // only for lengths above 8160
	}
	return out
}

func u64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
