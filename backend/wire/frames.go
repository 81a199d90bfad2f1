package wire

import "fmt"

// FrameType is the byte that says what a frame's body is.
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
)

// Frame is one message of the control channel: a pointer to one of the structures below.
type Frame interface {
	Type() FrameType
	checked
}

// Challenge is the acceptor's first frame.
type Challenge struct {
	_       struct{} `cbor:",toarray"`
	Version uint32
	Nonce   Nonce
}

// Hello is the dialer's answer to a Challenge.
type Hello struct {
	_       struct{} `cbor:",toarray"`
	Version uint32
	Nonce   Nonce
	Mac     Mac      // MacHello
	Engine  EngineID // the dialer's
	Target  EngineID // the engine that the dialer means
	Agent   string   // the dialer's
	Session uint64   // the dialer's number of this connection; a higher one replaces a lower one
	After   uint64   // the dialer's session before, of which notifications may be missing; 0: none
	Boot    string   // boot id of the dialer's host
	Process Process  // the dialer's
	Offers  []EndpointOffer
}

// EndpointOffer is an endpoint opened for the other side.
type EndpointOffer struct {
	_    struct{} `cbor:",toarray"`
	Rail uint8    // the target's rail
	Own  uint8    // the dialer's; a Welcome repeats both numbers
	ID   uint64   // the offering side's number of the link, which messages to it carry
	Addr []byte   // provider.Endpoint.Addr
}

// Welcome ends a handshake well.
type Welcome struct {
	_       struct{} `cbor:",toarray"`
	Version uint32
	Mac     Mac      // MacWelcome
	Engine  EngineID // the acceptor's
	Agent   string   // the acceptor's
	Session uint64   // the Hello's
	NextSeq uint64   // the acceptor has taken in all notifications below it of session Hello.After,
	Have    []uint16 // and those so far beyond it; ascending. The session's numbers go on behind these
	Offers  []EndpointOffer
}

// Reject ends a handshake.
type Reject struct {
	_    struct{} `cbor:",toarray"`
	Code Code
	Text string
	Mac  Mac // MacReject, where the dialer has proved itself; else zero, and anybody may have sent it
}

// KeysReq asks the target for the keys of ranges.
type KeysReq struct {
	_      struct{} `cbor:",toarray"`
	ID     uint64
	Ranges Ranges
}

// Keys answers a KeysReq, entry by entry.
type Keys struct {
	_       struct{} `cbor:",toarray"`
	ID      uint64
	Entries KeyEntries
}

// Revoke says that the target's regions are going away; the other side posts nothing more to them.
type Revoke struct {
	_       struct{} `cbor:",toarray"`
	ID      uint64
	Regions []uint64
}

// Revoked answers a Revoke once nothing of the sender's is in flight on the regions.
type Revoked struct {
	_   struct{} `cbor:",toarray"`
	ID  uint64
	All bool // every other key of the target's is given up too: it need not ask about them before they are asked for again
}

// Ping asks for a Pong with the same number.
type Ping struct {
	_   struct{} `cbor:",toarray"`
	Seq uint64
	Got uint64 // as Pong
}

// Pong answers a Ping, or with number 0 only acknowledges.
type Pong struct {
	_   struct{} `cbor:",toarray"`
	Seq uint64
	Got uint64 // frames of the other side's that the sender has taken in since the session began: see Numbered
}

// Fence asks the target to end our access through one endpoint and to open another.
type Fence struct {
	_     struct{} `cbor:",toarray"`
	ID    uint64
	Rail  uint8  // the link's number: its place among the Hello's offers
	Epoch uint32 // the link's new epoch
	Addr  []byte // our new endpoint's address
}

// Fenced answers a Fence: the old endpoint is closed.
type Fenced struct {
	_       struct{} `cbor:",toarray"`
	ID      uint64
	Rail    uint8
	Epoch   uint32
	Addr    []byte   // the target's new endpoint; empty: it opened none
	NextSeq uint64   // the next notification that the target wants: all below have been proved
	Have    []uint64 // and these, which wait for earlier ones; ascending
}

// Drain asks the target to say when all notifications below Next have arrived: the initiator is about to end the session.
type Drain struct {
	_    struct{} `cbor:",toarray"`
	Next uint64
}

// Drained answers a Drain.
type Drained struct {
	_    struct{} `cbor:",toarray"`
	Next uint64   // as in the Drain
}

// Bye ends a connection on purpose.
type Bye struct {
	_    struct{} `cbor:",toarray"`
	Text string
	Gone bool // the engine itself ends; else only this session does, and another may follow
}

// Resume is the dialer's answer to a Challenge when its session has lost its connection.
type Resume struct {
	_       struct{} `cbor:",toarray"`
	Version uint32
	Nonce   Nonce
	Mac     Mac      // MacResume
	Engine  EngineID // the dialer's
	Target  EngineID // the engine that the dialer means
	Session uint64   // the Hello's
	Proof   Mac      // the Mac of the Welcome, which only the session's dialer was told
	Try     uint64   // grows with each Resume of the session: a lower one comes late
	Got     uint64   // as Pong
}

// Resumed answers a Resume: this connection is the session's now.
type Resumed struct {
	_       struct{} `cbor:",toarray"`
	Version uint32
	Mac     Mac      // MacResumed
	Engine  EngineID // the acceptor's
	Session uint64   // the Resume's
	Got     uint64   // as Pong
}

// Numbered says that a frame counts in Got: it is kept until the other side has taken it in, and comes once and in order
// though the connection changes. Frames of the handshake are not asked about.
func Numbered(f Frame) bool {
	switch f.Type() {
	case TypePing, TypePong, TypeBye:
		return false
	}
	return true
}

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

// newFrame makes an empty frame of a type, nil for an unknown one.
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
	}
	return nil
}

var typeNames = [...]string{"none", "challenge", "hello", "welcome", "reject", "keys-req", "keys", "revoke", "revoked",
	"ping", "pong", "fence", "fenced", "bye", "resume", "resumed",
	"ring-req", "ring", "copy", "copied", "drain", "drained"}

// String is the type's name for logs.
func (t FrameType) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}
