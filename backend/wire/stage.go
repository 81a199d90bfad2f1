package wire

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Frames of staging. No rail reaches some memory. The memory's owner copies it to and from bounce buffers (a ring of
// slots) that a rail reaches.

// Limits of staging.
const (
	MaxPieces       = 4096 // pieces in a Copy
	MaxStageRegions = 256  // regions in a Copy
	MaxRing         = 1 << 32
	MaxSlots        = 1024 // slots in a ring
)

// RingReq asks the target for a ring that the initiator's rails reach.
type RingReq struct {
	_   struct{} `cbor:",toarray"`
	ID  uint64
	Mem int32 // nixl_mem_t of the ring: host memory or GPU memory
	For Claim // memory of the GPU that is to use the ring
}

// Ring answers a RingReq. The ring is memory of the target, reserved for the asking session until the session ends.
type Ring struct {
	_     struct{} `cbor:",toarray"`
	ID    uint64
	Range Claim  // as in a registration; Len 0: no ring, and Text has the reason
	Slot  uint64 // bytes of a slot; the range is a whole number of slots
	Text  string
	Code  Code // why there is no ring: CodeBusy, ask again later; CodeMemory, RingReq.For is not registered; 0: for another reason. With a ring: CodePacks, or 0
}

// Copy asks the target to copy between a slot of a ring and pieces of the target's memory. The pieces lie in the slot
// back to back.
type Copy struct {
	_       struct{} `cbor:",toarray"`
	ID      uint64
	Out     bool   // true: from the pieces to the slot (a READ); false: from the slot to the pieces
	At      uint64 // address in the ring
	Regions Claims // registrations that contain the pieces, or slices of them
	Pieces  CopyPieces
}

// CopyPiece is one piece of a Copy.
type CopyPiece struct {
	Region uint16 // index in Copy.Regions
	Addr   uint64
	Len    uint64
}

// CopyPieces is a list with a packed encoding, like Claims: flags, address - end of the previous piece, unless
// flagged: length, region.
type CopyPieces []CopyPiece

const (
	pieceSameLen    = 1 << iota // same length as the previous piece
	pieceSameRegion             // same region as the previous piece
	pieceFlags      = 1<<iota - 1
)

// MarshalCBOR implements cbor.Marshaler.
func (ps CopyPieces) MarshalCBOR() ([]byte, error) {
	b := make([]byte, 0, 6*len(ps))
	var last CopyPiece
	for _, p := range ps {
		flags := uint64(0)
		if p.Len == last.Len {
			flags |= pieceSameLen
		}
		if p.Region == last.Region {
			flags |= pieceSameRegion
		}
		b = binary.AppendUvarint(b, flags)
		b = binary.AppendVarint(b, int64(p.Addr-(last.Addr+last.Len)))
		if flags&pieceSameLen == 0 {
			b = binary.AppendUvarint(b, p.Len)
		}
		if flags&pieceSameRegion == 0 {
			b = binary.AppendUvarint(b, uint64(p.Region))
		}
		last = p
	}
	return encMode.Marshal(b)
}

// UnmarshalCBOR implements cbor.Unmarshaler.
func (ps *CopyPieces) UnmarshalCBOR(data []byte) error {
	u, err := unpacker(data)
	if err != nil {
		return err
	}
	out := CopyPieces{}
	var p CopyPiece
	for u.more("pieces", len(out), MaxPieces) {
		flags := u.flags(pieceFlags)
		p.Addr += p.Len + uint64(u.varint())
		if flags&pieceSameLen == 0 {
			p.Len = u.uvarint()
		}
		if flags&pieceSameRegion == 0 {
			n := u.uvarint()
			if p.Region = uint16(n); uint64(p.Region) != n {
				u.fail()
			}
		}
		out = append(out, p)
	}
	*ps = out
	return u.err
}

// Copied answers a Copy: either every byte has been copied, or the copy has failed and nothing more will be copied.
type Copied struct {
	_    struct{} `cbor:",toarray"`
	ID   uint64
	Text string // the error; empty: done
	Code Code   // CodeUnmapped, or 0 for another reason
}

// PackedCopy is a Copy in which the target's GPU compresses: gr_pack.h has the form of a packed chunk. For rings with CodePacks. PackedCopied
// answers.
type PackedCopy struct {
	_      struct{} `cbor:",toarray"`
	Copy   Copy
	Packed uint32 // Copy.Out false: bytes of the packed chunk in the slot; true: 0
}

// PackedCopied answers a PackedCopy.
type PackedCopied struct {
	_      struct{} `cbor:",toarray"`
	Copied Copied
	Packed uint32 // Copy.Out: bytes of the packed chunk in the slot; 0: the slot has the bytes in clear
}

// Type methods implement Frame.
func (*RingReq) Type() FrameType { return TypeRingReq }
func (*Ring) Type() FrameType    { return TypeRing }
func (*Copy) Type() FrameType    { return TypeCopy }
func (*Copied) Type() FrameType  { return TypeCopied }

func (*PackedCopy) Type() FrameType   { return TypePackedCopy }
func (*PackedCopied) Type() FrameType { return TypePackedCopied }

func (f *RingReq) check() error {
	if f.Mem != 0 && f.Mem != 1 || f.For.Dev > math.MaxInt32 {
		return fmt.Errorf("%w: ring request for memory type %d of device %d", ErrFormat, f.Mem, f.For.Dev)
	}
	return nil
}

func (f *Ring) check() error {
	switch {
	case f.Range.Len == 0:
	case f.Range.Len > MaxRing || f.Range.Addr+f.Range.Len < f.Range.Addr:
		return fmt.Errorf("%w: a ring of %d bytes at %#x", ErrFormat, f.Range.Len, f.Range.Addr)
	case f.Slot == 0 || f.Range.Len%f.Slot != 0 || f.Range.Len/f.Slot > MaxSlots:
		return fmt.Errorf("%w: slots of %d bytes in a ring of %d", ErrFormat, f.Slot, f.Range.Len)
	}
	return limit("text", len(f.Text), MaxText)
}

func (f *Copy) check() error {
	if err := firstError(limit("regions", len(f.Regions), MaxStageRegions), limit("pieces", len(f.Pieces), MaxPieces)); err != nil {
		return err
	}
	for _, r := range f.Regions {
		if r.Addr+r.Len < r.Addr {
			return fmt.Errorf("%w: %d bytes at %#x run past the end of the address space", ErrFormat, r.Len, r.Addr)
		}
	}
	for i, p := range f.Pieces {
		if int(p.Region) >= len(f.Regions) || p.Addr+p.Len < p.Addr || p.Len > MaxRing {
			return fmt.Errorf("%w: piece %d: %d bytes at %#x of region %d", ErrFormat, i, p.Len, p.Addr, p.Region)
		}
	}
	return nil
}

func (f *Copied) check() error { return limit("text", len(f.Text), MaxText) }

func (f *PackedCopy) check() error {
	if f.Copy.Out != (f.Packed == 0) {
		return fmt.Errorf("%w: a copy to the slot %t, of %d packed bytes", ErrFormat, f.Copy.Out, f.Packed)
	}
	return f.Copy.check()
}

func (f *PackedCopied) check() error {
	if f.Packed > MaxRing/2 || f.Packed > 0 && f.Copied.Text != "" {
		return fmt.Errorf("%w: %d packed bytes", ErrFormat, f.Packed)
	}
	return f.Copied.check()
}
