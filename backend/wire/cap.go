package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
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

// Claim returns a range with its capability: the first 16 bytes of HMAC-SHA256 with the secret, over all fields. The MAC is
// written out as its two hashes: crypto/hmac allocates its state for each message.
func (s CapSecret) Claim(r Range) Claim {
	const label = "gorail range 1"
	var inner [sha256.BlockSize + 8 + len(label) + 28]byte
	var outer [sha256.BlockSize + sha256.Size]byte
	for i := range sha256.BlockSize {
		inner[i], outer[i] = 0x36, 0x5c
	}
	for i, b := range s {
		inner[i] ^= b
		outer[i] ^= b
	}
	b := inner[:sha256.BlockSize]
	b = append(binary.BigEndian.AppendUint64(b, uint64(len(label))), label...)
	b = binary.BigEndian.AppendUint64(b, r.Addr)
	b = binary.BigEndian.AppendUint64(b, r.Len)
	b = binary.BigEndian.AppendUint64(b, r.Dev)
	b = binary.BigEndian.AppendUint32(b, uint32(r.Mem))
	sum := sha256.Sum256(b)
	copy(outer[sha256.BlockSize:], sum[:])
	sum = sha256.Sum256(outer[:])
	return Claim{Range: r, Cap: Cap(sum[:len(Cap{})])}
}
