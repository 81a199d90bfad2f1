package wire

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Frames of staging: memory that no wire of ours reaches is copied by its owner to and from a ring of memory that one does.

// Limits of staging.
const (
	MaxPieces       = 4096 // pieces of a Copy
	MaxStageRegions = 256  // regions of a Copy
	MaxRing         = 1 << 32
	MaxSlots        = 1024 // of a ring
)

// RingReq asks the target for a ring that our wires reach.
type RingReq struct {
	_   struct{} `cbor:",toarray"`
	ID  uint64
	Mem int32  // of the host's memory or of a GPU's
	Dev uint64 // the GPU, as the target numbers it
}

// Ring answers a RingReq: memory of the target's that is the asking session's alone, until its end.
type Ring struct {
	_     struct{} `cbor:",toarray"`
	ID    uint64
	Range Range  // as of a registration; no bytes: there is none, see Text
	Slot  uint64 // bytes of a slot, of which the range has a whole number
	Text  string
}

// Copy asks the target to copy between a slot of a ring and pieces of its memory, which lie in the slot one behind the other.
type Copy struct {
	_       struct{} `cbor:",toarray"`
	ID      uint64
	Out     bool   // from the pieces to the slot: a READ; else to the pieces
	At      uint64 // address in the ring
	Regions Ranges // registrations that the pieces lie in
	Pieces  CopyPieces
}

// CopyPiece is one piece of a Copy.
type CopyPiece struct {
	Region uint16 // of Copy.Regions
	Addr   uint64
	Len    uint64
}

// CopyPieces is a list that packs itself, as Ranges does: flags, address - end of the one before, unless flagged: length, region.
type CopyPieces []CopyPiece

const (
	pieceSameLen    = 1 << iota // as the one before
	pieceSameRegion             // too
	pieceFlags      = 1<<iota - 1
)

// MarshalCBOR packs.
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

// UnmarshalCBOR unpacks.
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

// Copied answers a Copy: it is done, and every byte in place, or it will not be.
type Copied struct {
	_    struct{} `cbor:",toarray"`
	ID   uint64
	Text string // why not; empty: done
}

// Type methods implement Frame.
func (*RingReq) Type() FrameType { return TypeRingReq }
func (*Ring) Type() FrameType    { return TypeRing }
func (*Copy) Type() FrameType    { return TypeCopy }
func (*Copied) Type() FrameType  { return TypeCopied }

func (f *RingReq) check() error {
	if f.Mem != 0 && f.Mem != 1 || f.Dev > math.MaxInt32 {
		return fmt.Errorf("%w: a ring in memory %d of device %d", ErrFormat, f.Mem, f.Dev)
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
