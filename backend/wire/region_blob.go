package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// RegionBlob is the public part of a registration. It names the memory range and holds only constant facts.
type RegionBlob struct {
	_       struct{} `cbor:",toarray"`
	Version uint32   // set by Encode
	Engine  EngineID
	Addr    uint64
	Len     uint64 // bytes
	Dev     uint64
	Mem     int32 // nixl_mem_t
	Cap     Cap   // who has it may ask for keys and copies of the range
}

func (b *RegionBlob) check() error {
	if b.Version != Version {
		return fmt.Errorf("%w: blob version %d, here %d", ErrVersion, b.Version, Version)
	}
	if b.Addr+b.Len < b.Addr {
		return fmt.Errorf("%w: %d bytes at %#x run past the end of the address space", ErrFormat, b.Len, b.Addr)
	}
	return nil
}

// An application registers regions by the thousand, and encodes and decodes one blob for each. So their CBOR is written and
// read here without reflection.

// RegionBlobSize is the size of the largest blob.
const RegionBlobSize = headLen + 1 + 5 + 17 + 3*9 + 5 + 17 + sumLen

// Append appends the blob's bytes; equal fields give equal bytes.
func (b RegionBlob) Append(to []byte) ([]byte, error) {
	b.Version = Version
	if err := b.check(); err != nil {
		return nil, err
	}
	out := b.appendBody(append(to, 'G', 'R', kindRegion, Version))
	return binary.BigEndian.AppendUint32(out, crc32.Checksum(out[len(to):], castagnoli)), nil
}

// Encode is Append to new memory.
func (b RegionBlob) Encode() ([]byte, error) {
	return b.Append(make([]byte, 0, RegionBlobSize))
}

// Heads of CBOR items: the major type in the upper three bits.
const (
	cborUint     = 0 << 5
	cborNegative = 1 << 5 // of the number -1 - n
	cborBytes    = 2 << 5
	cborArray    = 4 << 5
)

const regionFields = 7

// appendBody appends the blob in CBOR, as package cbor encodes it.
func (b *RegionBlob) appendBody(out []byte) []byte {
	out = append(out, cborArray|regionFields)
	out = appendHead(out, cborUint, uint64(b.Version))
	out = append(append(out, cborBytes|byte(len(b.Engine))), b.Engine[:]...)
	out = appendHead(out, cborUint, b.Addr)
	out = appendHead(out, cborUint, b.Len)
	out = appendHead(out, cborUint, b.Dev)
	if b.Mem < 0 {
		out = appendHead(out, cborNegative, uint64(-1-int64(b.Mem)))
	} else {
		out = appendHead(out, cborUint, uint64(b.Mem))
	}
	return append(append(out, cborBytes|byte(len(b.Cap))), b.Cap[:]...)
}

// appendHead appends a number in its shortest form.
func appendHead(out []byte, major byte, v uint64) []byte {
	switch {
	case v < 24:
		return append(out, major|byte(v))
	case v < 1<<8:
		return append(out, major|24, byte(v))
	case v < 1<<16:
		return binary.BigEndian.AppendUint16(append(out, major|25), uint16(v))
	case v < 1<<32:
		return binary.BigEndian.AppendUint32(append(out, major|26), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(out, major|27), v)
}

// DecodeRegion decodes a region blob. It returns ErrForeign, ErrKind, ErrCorrupt, ErrVersion, ErrFormat or ErrLimit.
func DecodeRegion(data []byte) (RegionBlob, error) {
	if b, ok := readRegion(data); ok {
		return b, nil
	}
	var b RegionBlob
	if err := open(kindRegion, data, &b, b.check); err != nil {
		return RegionBlob{}, fmt.Errorf("region blob: %w", err)
	}
	return b, nil
}

// readRegion reads a blob exactly as Encode writes it. Of all else, open gives the error.
func readRegion(data []byte) (b RegionBlob, ok bool) {
	if len(data) < headLen+1+sumLen || len(data) > RegionBlobSize || string(data[:headLen+1]) != string([]byte{'G', 'R', kindRegion, Version, cborArray | regionFields}) {
		return b, false
	}
	body, sum := data[:len(data)-sumLen], binary.BigEndian.Uint32(data[len(data)-sumLen:])
	if crc32.Checksum(body, castagnoli) != sum {
		return b, false
	}
	h := heads{body[headLen+1:]}
	b.Version = uint32(h.number(cborUint))
	h.bytes(b.Engine[:])
	b.Addr, b.Len, b.Dev = h.number(cborUint), h.number(cborUint), h.number(cborUint)
	if len(h.left) > 0 && h.left[0]&(7<<5) == cborNegative {
		b.Mem = int32(-1 - int64(h.number(cborNegative)))
	} else {
		b.Mem = int32(h.number(cborUint))
	}
	h.bytes(b.Cap[:])
	// Equal bytes again: no number was too large for its field, or in a longer form.
	var again [RegionBlobSize]byte
	return b, b.check() == nil && string(b.appendBody(again[:0])) == string(body[headLen:])
}

// heads reads CBOR items. What is not the expected item is read as 0.
type heads struct{ left []byte }

func (h *heads) number(major byte) (v uint64) {
	if len(h.left) == 0 || h.left[0]&(7<<5) != major {
		return 0
	}
	v, more := uint64(h.left[0]&31), 0
	if v >= 24 {
		more = 1 << (v & 3)
		v = 0
	}
	if len(h.left) <= more {
		return 0
	}
	for _, b := range h.left[1 : 1+more] {
		v = v<<8 | uint64(b)
	}
	h.left = h.left[1+more:]
	return v
}

func (h *heads) bytes(to []byte) {
	if len(h.left) > len(to) && h.left[0] == cborBytes|byte(len(to)) {
		h.left = h.left[1+copy(to, h.left[1:]):]
	}
}
