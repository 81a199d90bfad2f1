package tcpmodel

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"

	"gorail/backend/trust"
)

// Bounds of records.
const (
	RecordHead  = 4
	RecordTag   = 16
	RecordWhole = 16 << 10  // bytes of a record that is verified before any of it is used
	RecordBody  = 128 << 10 // bytes of a record inside a frame's body
)

const nextKey = 1 << 31 // flag of a record's head

var (
	errRecord = errors.New("a record of this length breaks a rule")
	errForged = errors.New("a record is not the peer's")
)

// Records are the records of one direction of a connection. The zero generation and record come first.
type Records struct {
	Secret    *trust.RecordSecret
	Direction trust.Direction

	generation uint32
	number     uint64
	aead       cipher.AEAD
	iv         [12]byte
}

func (r *Records) key(next bool) {
	if next {
		r.generation++
	}
	if r.aead != nil && !next {
		return
	}
	k := r.Secret.Key(r.Direction, r.generation)
	block, err := aes.NewCipher(k.Key[:])
	if err == nil {
		r.aead, err = cipher.NewGCM(block)
	}
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	r.iv, r.number = k.IV, 0
}

func (r *Records) nonce() []byte {
	n := r.iv
	binary.BigEndian.PutUint64(n[4:], binary.BigEndian.Uint64(n[4:])^r.number)
	r.number++
	return n[:]
}

// Seal makes a record of text. next: it is the first under the next key.
func (r *Records) Seal(text []byte, next bool) []byte {
	r.key(next)
	head := uint32(len(text))
	if next {
		head |= nextKey
	}
	out := binary.LittleEndian.AppendUint32(nil, head)
	return r.aead.Seal(out, r.nonce(), text, out[:RecordHead])
}

// Open takes the first record of b and returns its text and the rest of b. The text is nil while the record is not whole.
func (r *Records) Open(b []byte) (text, rest []byte, err error) {
	if len(b) < RecordHead {
		return nil, b, nil
	}
	head := binary.LittleEndian.Uint32(b)
	n := int(head &^ nextKey)
	if n == 0 || n > RecordBody {
		return nil, b, errRecord
	}
	end := RecordHead + n + RecordTag
	if len(b) < end {
		return nil, b, nil
	}
	r.key(head&nextKey != 0)
	text, err = r.aead.Open([]byte{}, r.nonce(), b[RecordHead:end], b[:RecordHead])
	if err != nil {
		return nil, b, errForged
	}
	return text, b[end:], nil
}

// Generation is the number of the key in use.
func (r *Records) Generation() uint32 { return r.generation }
