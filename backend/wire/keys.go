package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// Ranges and keys come by the hundred thousand. What is much alike in neighbours is packed as the difference to the one before, in
// variable-length integers inside one CBOR byte string; the first number's predecessor is 0. Keys are random and go as they are.
//
//	range:  flags, address - end of the one before, unless flagged: length, device and memory type
//	entry:  flags, unless unknown: region - the one before - 1, generation if flagged, rails (a bit each) if flagged, then
//	        for each rail its key, little endian, in 4 bytes or, if flagged, in 8, then for each rail, or once for all,
//	        base - the rail's base before
//
// A decoded frame has at most MaxRanges entries of MaxKeyRails keys, 768 KiB, whatever it claims.

// Range names a registration as its RegionBlob does.
type Range struct {
	Addr uint64
	Len  uint64
	Dev  uint64
	Mem  int32
}

// RailKey is the key of a region on one rail.
type RailKey struct {
	Rail uint8 // the target's, below MaxKeyRails
	Key  uint64
	Base uint64 // remote address of the range's first byte, as the wire wants it
}

// KeyEntry answers one range.
type KeyEntry struct {
	Known  bool      // false: no such registration, the rest is zero
	Region uint64    // the target's number of the registration
	Gen    uint32    // grows when the keys change
	Rails  []RailKey // ascending
}

// Ranges is a list that packs itself.
type Ranges []Range

// KeyEntries is a list that packs itself.
type KeyEntries []KeyEntry

const (
	rangeSameLen  = 1 << iota // as the one before
	rangeSameKind             // device and memory type, too
	rangeFlags    = 1<<iota - 1
)

const (
	entryKnown    = 1 << iota
	entryGen      // the generation is not the region number's upper half
	entryRails    // other rails than before
	entryWide     // a key has more than 32 bits
	entryBaseEach // the differences of bases are not the same on all rails
	entryFlags    = 1<<iota - 1
)

// MarshalCBOR packs.
func (rs Ranges) MarshalCBOR() ([]byte, error) {
	var b []byte
	var last Range
	for _, r := range rs {
		flags := uint64(0)
		if r.Len == last.Len {
			flags |= rangeSameLen
		}
		if r.Dev == last.Dev && r.Mem == last.Mem {
			flags |= rangeSameKind
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
		last = r
	}
	return encMode.Marshal(b)
}

// UnmarshalCBOR unpacks.
func (rs *Ranges) UnmarshalCBOR(data []byte) error {
	u, err := unpacker(data)
	if err != nil {
		return err
	}
	out := Ranges{}
	var r Range
	for u.more("ranges", len(out), MaxRanges) {
		flags := u.flags(rangeFlags)
		r.Addr += r.Len + uint64(u.varint())
		if flags&rangeSameLen == 0 {
			r.Len = u.uvarint()
		}
		if flags&rangeSameKind == 0 {
			r.Dev, r.Mem = u.uvarint(), int32(u.varint())
		}
		out = append(out, r)
	}
	*rs = out
	return u.err
}

// bases are what a rail's base is taken from.
type bases [MaxKeyRails]uint64

// MarshalCBOR packs a checked list.
func (es KeyEntries) MarshalCBOR() ([]byte, error) {
	var b []byte
	var last bases
	var rails, region uint64
	for _, e := range es {
		if !e.Known {
			b = binary.AppendUvarint(b, 0)
			continue
		}
		set, flags := uint64(0), uint64(entryKnown)
		for i, k := range e.Rails {
			set |= 1 << k.Rail
			if k.Key > math.MaxUint32 {
				flags |= entryWide
			}
			if first := e.Rails[0]; i > 0 && k.Base-last[k.Rail] != first.Base-last[first.Rail] {
				flags |= entryBaseEach
			}
		}
		if set != rails {
			flags |= entryRails
		}
		if e.Gen != uint32(e.Region>>32) {
			flags |= entryGen
		}
		b = binary.AppendUvarint(b, flags)
		b = binary.AppendVarint(b, int64(e.Region-region-1))
		if flags&entryGen != 0 {
			b = binary.AppendUvarint(b, uint64(e.Gen))
		}
		if flags&entryRails != 0 {
			b = binary.AppendUvarint(b, set)
		}
		for _, k := range e.Rails {
			b = binary.LittleEndian.AppendUint64(b, k.Key)[:len(b)+keyBytes(flags)]
		}
		for i, k := range e.Rails {
			if i == 0 || flags&entryBaseEach != 0 {
				b = binary.AppendVarint(b, int64(k.Base-last[k.Rail]))
			}
			last[k.Rail] = k.Base
		}
		rails, region = set, e.Region
	}
	return encMode.Marshal(b)
}

// keyBytes is how long the keys of an entry are.
func keyBytes(flags uint64) int {
	if flags&entryWide != 0 {
		return 8
	}
	return 4
}

// UnmarshalCBOR unpacks.
func (es *KeyEntries) UnmarshalCBOR(data []byte) error {
	u, err := unpacker(data)
	if err != nil {
		return err
	}
	out := KeyEntries{}
	var last bases
	var rails, region uint64
	for u.more("entries", len(out), MaxRanges) {
		flags := u.flags(entryFlags)
		e := KeyEntry{Rails: []RailKey{}}
		if flags&entryKnown == 0 {
			out = append(out, e)
			continue
		}
		e.Known = true
		e.Region = region + 1 + uint64(u.varint())
		e.Gen = uint32(e.Region >> 32)
		if flags&entryGen != 0 {
			e.Gen = uint32(u.uvarint())
		}
		if flags&entryRails != 0 {
			rails = u.uvarint()
		}
		if rails != 0 {
			e.Rails = make([]RailKey, 0, bits.OnesCount64(rails))
		}
		for set := rails; set != 0; set &= set - 1 {
			e.Rails = append(e.Rails, RailKey{Rail: uint8(bits.TrailingZeros64(set)), Key: u.key(keyBytes(flags))})
		}
		var step uint64
		for i := range e.Rails {
			if i == 0 || flags&entryBaseEach != 0 {
				step = uint64(u.varint())
			}
			k := &e.Rails[i]
			last[k.Rail] += step
			k.Base = last[k.Rail]
		}
		out = append(out, e)
		region = e.Region
	}
	*es = out
	return u.err
}

// unpack reads numbers; after an error there are no more, and all are 0.
type unpack struct {
	b   []byte
	err error
}

func unpacker(data []byte) (u unpack, err error) {
	err = decMode.Unmarshal(data, &u.b)
	return u, err
}

// more says whether there is another element after n.
func (u *unpack) more(what string, n, most int) bool {
	if u.err == nil && len(u.b) > 0 {
		u.err = limit(what, n+1, most)
	}
	return u.err == nil && len(u.b) > 0
}

func (u *unpack) flags(known uint64) uint64 {
	f := u.uvarint()
	if f&^known != 0 {
		u.fail()
	}
	return f
}

func (u *unpack) uvarint() uint64 {
	v, n := binary.Uvarint(u.b)
	if n <= 0 {
		u.fail()
		return 0
	}
	u.b = u.b[n:]
	return v
}

func (u *unpack) varint() int64 {
	v, n := binary.Varint(u.b)
	if n <= 0 {
		u.fail()
		return 0
	}
	u.b = u.b[n:]
	return v
}

// key is n bytes, 8 at most.
func (u *unpack) key(n int) uint64 {
	if len(u.b) < n {
		u.fail()
		return 0
	}
	var b [8]byte
	copy(b[:], u.b[:n])
	u.b = u.b[n:]
	return binary.LittleEndian.Uint64(b[:])
}

func (u *unpack) fail() {
	u.b, u.err = nil, fmt.Errorf("%w: packed numbers", ErrFormat)
}
