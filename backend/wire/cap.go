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

// Claim returns a range with its capability: the first 16 bytes of HMAC-SHA256 with the secret, over all fields.
func (s CapSecret) Claim(r Range) Claim {
	const label = "gorail range 1"
	b := make([]byte, 0, 8+len(label)+28)
	b = append(binary.BigEndian.AppendUint64(b, uint64(len(label))), label...)
	b = binary.BigEndian.AppendUint64(b, r.Addr)
	b = binary.BigEndian.AppendUint64(b, r.Len)
	b = binary.BigEndian.AppendUint64(b, r.Dev)
	b = binary.BigEndian.AppendUint32(b, uint32(r.Mem))
	h := hmac.New(sha256.New, s[:])
	h.Write(b)
	return Claim{Range: r, Cap: Cap(h.Sum(nil)[:len(Cap{})])}
}
