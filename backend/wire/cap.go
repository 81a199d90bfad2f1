package wire

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
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

// CapMaker makes capabilities: AES-CMAC (NIST SP 800-38B) with the secret as the AES-256 key, over all fields of a range. Applications
// register regions by the thousand, and two blocks of AES take a third of the time of an HMAC. Not safe for concurrent use.
type CapMaker struct {
	aes    cipher.Block
	k1, k2 uint64              // CMAC's subkey for a last block that is whole
	block  [aes.BlockSize]byte // a field, because what an interface is called with is allocated
}

// Maker returns a CapMaker with the secret.
func (s CapSecret) Maker() *CapMaker {
	c, err := aes.NewCipher(s[:])
	if err != nil {
		panic(err) // only keys of other lengths are refused
	}
	m := &CapMaker{aes: c}
	high, low := m.encrypt(0, 0)
	m.k1, m.k2 = high<<1|low>>63, low<<1^high>>63*0x87
	return m
}

// encrypt encrypts one block.
func (m *CapMaker) encrypt(high, low uint64) (uint64, uint64) {
	binary.BigEndian.PutUint64(m.block[:8], high)
	binary.BigEndian.PutUint64(m.block[8:], low)
	m.aes.Encrypt(m.block[:], m.block[:])
	return binary.BigEndian.Uint64(m.block[:8]), binary.BigEndian.Uint64(m.block[8:])
}

// Claim returns a range with its capability.
func (m *CapMaker) Claim(r Range) Claim {
	high, low := m.encrypt(r.Addr, r.Len)
	m.encrypt(high^r.Dev^m.k1, low^uint64(uint32(r.Mem))^m.k2)
	return Claim{Range: r, Cap: m.block}
}
