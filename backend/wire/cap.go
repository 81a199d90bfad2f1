package wire

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"hash"
)

// Cap is a capability: it proves that its sender has the RegionBlob of a registration. The same range of the same engine
// always has the same Cap.
type Cap [16]byte

// Equal compares in constant time.
func (c Cap) Equal(other Cap) bool { return hmac.Equal(c[:], other[:]) }

// String hides the capability from logs.
func (Cap) String() string { return "(capability)" }

// GoString hides the capability from %#v.
func (Cap) GoString() string { return "(capability)" }

// CapSecret makes the capabilities of one engine. It never leaves the engine.
type CapSecret [32]byte

// String hides the secret from logs.
func (CapSecret) String() string { return "(secret)" }

// GoString hides the secret from %#v.
func (CapSecret) GoString() string { return "(secret)" }

// CapMaker makes capabilities: the first 16 bytes of HMAC-SHA256 with the secret, over all fields of a range. It keeps both hashes as
// they are behind the secret, which is half of the work. Not safe for concurrent use.
type CapMaker struct {
	hash         hash.Hash
	inner, outer []byte // states of the hash
	message      []byte // its fields follow
	sum          [sha256.Size]byte
}

const capLabel = "gorail range 1"

// Maker returns a CapMaker with the secret.
func (s CapSecret) Maker() *CapMaker {
	m := &CapMaker{hash: sha256.New(), message: append(binary.BigEndian.AppendUint64(nil, uint64(len(capLabel))), capLabel...)}
	m.inner, m.outer = m.padded(s, 0x36), m.padded(s, 0x5c)
	return m
}

// padded returns the hash's state behind the secret, padded as RFC 2104 says.
func (m *CapMaker) padded(s CapSecret, pad byte) []byte {
	block := bytes.Repeat([]byte{pad}, sha256.BlockSize)
	for i, b := range s {
		block[i] ^= b
	}
	m.hash.Reset()
	_, _ = m.hash.Write(block)                                     // never fails
	state, _ := m.hash.(encoding.BinaryAppender).AppendBinary(nil) // never fails
	return state
}

// Claim returns a range with its capability.
func (m *CapMaker) Claim(r Range) Claim {
	b := binary.BigEndian.AppendUint64(m.message, r.Addr)
	b = binary.BigEndian.AppendUint64(b, r.Len)
	b = binary.BigEndian.AppendUint64(b, r.Dev)
	b = binary.BigEndian.AppendUint32(b, uint32(r.Mem))
	m.message = b[:len(m.message)]
	m.after(m.inner, b)
	m.after(m.outer, m.sum[:])
	return Claim{Range: r, Cap: Cap(m.sum[:len(Cap{})])}
}

// after sets sum to the hash from a state on.
func (m *CapMaker) after(state, message []byte) {
	_ = m.hash.(encoding.BinaryUnmarshaler).UnmarshalBinary(state) // the hash's own
	_, _ = m.hash.Write(message)
	m.hash.Sum(m.sum[:0])
}
