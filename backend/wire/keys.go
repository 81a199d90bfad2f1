package wire

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Ranges and keys come by the hundred thousand, and are much alike: they are packed as differences, each number from the
// one before it, in variable-length integers inside one CBOR byte string. What a rail's first number is taken from is 0.
//
//	range:  flags, address - end of the one before, unless flagged: length, device and memory type
//	entry:  flags, unless unknown: region - the one before - 1, generation if flagged, rails (a bit each) if flagged, then
//	        for each rail, or once for all, key - the rail's key before, and the same for bases
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
	entryKeyEach  // the differences of keys are not the same on all rails
	entryBaseEach // and of bases
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

// before is what a rail's numbers are taken from.
type before [MaxKeyRails]struct{ key, base uint64 }

// MarshalCBOR packs a checked list.
func (es KeyEntries) MarshalCBOR() ([]byte, error) {
	var b []byte
	var last before
	var rails, region uint64
	for _, e := range es {
		if !e.Known {
			b = binary.AppendUvarint(b, 0)
			continue
		}
		set, flags := uint64(0), uint64(entryKnown)
		for i, k := range e.Rails {
			set |= 1 << k.Rail
			first, now := e.Rails[0], last[k.Rail]
			if i > 0 && k.Key-now.key != first.Key-last[first.Rail].key {
				flags |= entryKeyEach
			}
			if i > 0 && k.Base-now.base != first.Base-last[first.Rail].base {
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
		for i, k := range e.Rails {
			if i == 0 || flags&entryKeyEach != 0 {
				b = binary.AppendVarint(b, int64(k.Key-last[k.Rail].key))
			}
		}
		for i, k := range e.Rails {
			if i == 0 || flags&entryBaseEach != 0 {
				b = binary.AppendVarint(b, int64(k.Base-last[k.Rail].base))
			}
			last[k.Rail].key, last[k.Rail].base = k.Key, k.Base
		}
		rails, region = set, e.Region
	}
	return encMode.Marshal(b)
}

// UnmarshalCBOR unpacks.
func (es *KeyEntries) UnmarshalCBOR(data []byte) error {
	u, err := unpacker(data)
	if err != nil {
		return err
	}
	out := KeyEntries{}
	var last before
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
		var step uint64
		for set := rails; set != 0; set &= set - 1 {
			if set == rails || flags&entryKeyEach != 0 {
				step = uint64(u.varint())
			}
			k := uint8(bits.TrailingZeros64(set))
			last[k].key += step
			e.Rails = append(e.Rails, RailKey{Rail: k, Key: last[k].key})
		}
		for i := range e.Rails {
			if i == 0 || flags&entryBaseEach != 0 {
				step = uint64(u.varint())
			}
			k := &e.Rails[i]
			last[k.Rail].base += step
			k.Base = last[k.Rail].base
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

func (u *unpack) fail() {
	u.b, u.err = nil, fmt.Errorf("%w: packed numbers", ErrFormat)
}
