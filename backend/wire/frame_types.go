package wire

import "fmt"

// FrameType is the byte that identifies the type of a frame's body.
type FrameType uint8

// The types of frames.
const (
	TypeChallenge FrameType = iota + 1
	TypeHello
	TypeWelcome
	TypeReject
	TypeKeysReq
	TypeKeys
	TypeRevoke
	TypeRevoked
	TypePing
	TypePong
	TypeFence
	TypeFenced
	TypeBye
	TypeResume
	TypeResumed
	TypeRingReq
	TypeRing
	TypeCopy
	TypeCopied
	TypeDrain
	TypeDrained
	TypeOpen
	TypeSnapshotReq
	TypeSnapshot
	TypeMoved
	TypeWider
	TypeHandlesReq
	TypeHandles
	TypePackedCopy
	TypePackedCopied
)

// Type methods implement Frame.
func (*Challenge) Type() FrameType { return TypeChallenge }
func (*Hello) Type() FrameType     { return TypeHello }
func (*Welcome) Type() FrameType   { return TypeWelcome }
func (*Reject) Type() FrameType    { return TypeReject }
func (*KeysReq) Type() FrameType   { return TypeKeysReq }
func (*Keys) Type() FrameType      { return TypeKeys }
func (*Revoke) Type() FrameType    { return TypeRevoke }
func (*Revoked) Type() FrameType   { return TypeRevoked }
func (*Ping) Type() FrameType      { return TypePing }
func (*Pong) Type() FrameType      { return TypePong }
func (*Fence) Type() FrameType     { return TypeFence }
func (*Fenced) Type() FrameType    { return TypeFenced }
func (*Drain) Type() FrameType     { return TypeDrain }
func (*Drained) Type() FrameType   { return TypeDrained }
func (*Bye) Type() FrameType       { return TypeBye }
func (*Resume) Type() FrameType    { return TypeResume }
func (*Resumed) Type() FrameType   { return TypeResumed }
func (*Open) Type() FrameType      { return TypeOpen }
func (*Moved) Type() FrameType     { return TypeMoved }
func (*Wider) Type() FrameType     { return TypeWider }

// newFrame returns an empty frame of a type, nil for an unknown type.
func newFrame(t FrameType) Frame {
	switch t {
	case TypeChallenge:
		return new(Challenge)
	case TypeHello:
		return new(Hello)
	case TypeWelcome:
		return new(Welcome)
	case TypeReject:
		return new(Reject)
	case TypeKeysReq:
		return new(KeysReq)
	case TypeKeys:
		return new(Keys)
	case TypeRevoke:
		return new(Revoke)
	case TypeRevoked:
		return new(Revoked)
	case TypePing:
		return new(Ping)
	case TypePong:
		return new(Pong)
	case TypeFence:
		return new(Fence)
	case TypeFenced:
		return new(Fenced)
	case TypeBye:
		return new(Bye)
	case TypeResume:
		return new(Resume)
	case TypeResumed:
		return new(Resumed)
	case TypeRingReq:
		return new(RingReq)
	case TypeRing:
		return new(Ring)
	case TypeCopy:
		return new(Copy)
	case TypeCopied:
		return new(Copied)
	case TypeDrain:
		return new(Drain)
	case TypeDrained:
		return new(Drained)
	case TypeOpen:
		return new(Open)
	case TypeSnapshotReq:
		return new(SnapshotReq)
	case TypeSnapshot:
		return new(Snapshot)
	case TypeMoved:
		return new(Moved)
	case TypeWider:
		return new(Wider)
	case TypeHandlesReq:
		return new(HandlesReq)
	case TypeHandles:
		return new(Handles)
	case TypePackedCopy:
		return new(PackedCopy)
	case TypePackedCopied:
		return new(PackedCopied)
	}
	return nil
}

var typeNames = [...]string{"none", "challenge", "hello", "welcome", "reject", "keys-req", "keys", "revoke", "revoked",
	"ping", "pong", "fence", "fenced", "bye", "resume", "resumed",
	"ring-req", "ring", "copy", "copied", "drain", "drained", "open", "snapshot-req", "snapshot", "moved", "wider", "handles-req", "handles",
	"packed-copy", "packed-copied"}

// String returns the type's name for logs.
func (t FrameType) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}
