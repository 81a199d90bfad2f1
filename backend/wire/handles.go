package wire

import "fmt"

// Frames of NVLink between hosts. An initiator maps memory of the target's GPUs by fabric handles, which it asks for when a transfer first
// needs the region.

// Limits of these frames.
const (
	HandleSize = 72  // a fabric handle, and the bytes of memory behind it as 8 bytes, little endian
	MaxHandles = 512 // in one frame: 36 KiB
	MaxShare   = 256
)

// HandlesReq asks the target for fabric handles of a region.
type HandlesReq struct {
	_         struct{} `cbor:",toarray"`
	ID        uint64
	Rail      uint8  // the target's
	Key, Base uint64 // of the region on that rail, as in its RailKey
	First     uint32 // the handles from this one on
}

// Handles answers a HandlesReq.
type Handles struct {
	_     struct{} `cbor:",toarray"`
	ID    uint64
	Share []byte // describes the memory (gpu.Share)
	List  []byte // HandleSize bytes for each handle
	Why   uint32 // why there are none: a gpu.Why; 0: there are
}

// Type methods implement Frame.
func (*HandlesReq) Type() FrameType { return TypeHandlesReq }
func (*Handles) Type() FrameType    { return TypeHandles }

func (f *HandlesReq) check() error { return limit("number of a rail", int(f.Rail), MaxKeyRails-1) }

func (f *Handles) check() error {
	if len(f.List)%HandleSize != 0 {
		return fmt.Errorf("%w: fabric handles of %d bytes", ErrFormat, len(f.List))
	}
	return firstError(limit("share", len(f.Share), MaxShare), limit("fabric handles", len(f.List)/HandleSize, MaxHandles))
}
