package wire

import "encoding/binary"

// Range names a registration by the same numbers as its RegionBlob.
type Range struct {
	Addr uint64
	Len  uint64
	Dev  uint64
	Mem  int32
}

// Claim names memory of an engine in a request to it: a registration, or a slice of one.
type Claim struct {
	Range
	Cap Cap // of the registration
}

// Claims is a list with a packed encoding: flags, address - end of the previous range, unless flagged: length, device and
// memory type, capability. Slices of one registration share its capability, which is then sent once.
type Claims []Claim

const (
	rangeSameLen  = 1 << iota // same length as the previous range
	rangeSameKind             // same device and memory type as the previous range
	rangeSameCap              // same capability as the previous range
	rangeFlags    = 1<<iota - 1
)

// MarshalCBOR implements cbor.Marshaler.
func (cs Claims) MarshalCBOR() ([]byte, error) {
	var b []byte
	var last Claim
	for _, r := range cs {
		flags := uint64(0)
		if r.Len == last.Len {
			flags |= rangeSameLen
		}
		if r.Dev == last.Dev && r.Mem == last.Mem {
			flags |= rangeSameKind
		}
		if r.Cap == last.Cap {
			flags |= rangeSameCap
		}
		b = binary.AppendUvarint(b, flags)
		b = binary.AppendVarint(b, int64(r.Addr-(last.Addr+last.Len)))
		if flags&rangeSameLen == 0 {
			b = binary.AppendUvarint(b, r.Len)
		}
		if flags&rangeSameKind == 0 {
			b = binary.AppendUvarint(b, r.Dev)
			b = binary.AppendVarint(b, int64(r.Mem))
		}
		if flags&rangeSameCap == 0 {
			b = append(b, r.Cap[:]...)
		}
		last = r
	}
	return encMode.Marshal(b)
}

// UnmarshalCBOR implements cbor.Unmarshaler.
func (cs *Claims) UnmarshalCBOR(data []byte) error {
	u, err := unpacker(data)
	if err != nil {
		return err
	}
	out := Claims{}
	var r Claim
	for u.more("ranges", len(out), MaxRanges) {
		flags := u.flags(rangeFlags)
		r.Addr += r.Len + uint64(u.varint())
		if flags&rangeSameLen == 0 {
			r.Len = u.uvarint()
		}
		if flags&rangeSameKind == 0 {
			r.Dev, r.Mem = u.uvarint(), int32(u.varint())
		}
		if flags&rangeSameCap == 0 {
			u.bytes(r.Cap[:])
		}
		out = append(out, r)
	}
	*cs = out
	return u.err
}
