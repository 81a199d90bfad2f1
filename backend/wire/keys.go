package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"gorail/backend/option"
)

// Engines exchange ranges and keys by the hundred thousand, so their encoding is packed. Numbers that are similar in
// neighbours are sent as the difference from the previous element, as variable-length integers inside one CBOR byte
// string. The first element's predecessor is 0. Keys are random and are sent unchanged.
//
//	claim:  see Claims
//	entry:  flags (two for the access), unless unknown: region - the previous region - 1, generation if flagged, rails (one bit each) if flagged;
//	        then the key of each rail, little endian, in 4 bytes or, if flagged, in 8; then for each rail, or once for all
//	        rails, base - the same rail's previous base
//
// The decoder limits a frame to MaxRanges entries with MaxKeyRails keys each: 768 KiB.

// RailKey is the key of a region on one rail.
type RailKey struct {
	Rail uint8 // the target's rail, below MaxKeyRails
	Key  uint64
	Base uint64 // remote address of the range's first byte, as the provider's work requests need it
}

// KeyEntry answers one range.
type KeyEntry struct {
	Known  bool          // false: the target has no such registration, and the other fields are zero
	Region uint64        // the target's number of the registration
	Gen    uint32        // increases when the keys change
	Access option.Rights // what the asking engine may do
	Rails  []RailKey     // ascending
}

// KeyEntries is a list with a packed encoding.
type KeyEntries []KeyEntry

const (
	entryKnown    = 1 << iota
	entryGen      // the generation differs from the upper half of the region number
	entryRails    // the set of rails differs from the previous entry's
	entryWide     // a key has more than 32 bits
	entryBaseEach // the differences of bases vary between rails
	entryRead     // peers may READ
	entryWrite    // peers may WRITE
	entryFlags    = 1<<iota - 1
)

// bases has the previous base of each rail.
type bases [MaxKeyRails]uint64

// MarshalCBOR implements cbor.Marshaler. The list has passed its check.
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
		if e.Access.Allow(option.PeersRead) {
			flags |= entryRead
		}
		if e.Access.Allow(option.PeersWrite) {
			flags |= entryWrite
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

// keyBytes returns the encoded length of an entry's keys, in bytes.
func keyBytes(flags uint64) int {
	if flags&entryWide != 0 {
		return 8
	}
	return 4
}

// UnmarshalCBOR implements cbor.Unmarshaler.
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
		if flags&entryRead != 0 {
			e.Access |= option.PeersRead
		}
		if flags&entryWrite != 0 {
			e.Access |= option.PeersWrite
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

// unpack reads numbers. After an error, all further numbers are 0.
type unpack struct {
	b   []byte
	err error
}

func unpacker(data []byte) (u unpack, err error) {
	err = decMode.Unmarshal(data, &u.b)
	return u, err
}

// more reports whether another element follows the first n elements.
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

// key reads a key of n bytes, at most 8.
func (u *unpack) key(n int) uint64 {
	var b [8]byte
	u.bytes(b[:n])
	return binary.LittleEndian.Uint64(b[:])
}

// bytes fills b. After an error it leaves b as it is.
func (u *unpack) bytes(b []byte) {
	if len(u.b) < len(b) {
		u.fail()
		return
	}
	u.b = u.b[copy(b, u.b):]
}

func (u *unpack) fail() {
	u.b, u.err = nil, fmt.Errorf("%w: bad packed list", ErrFormat)
}
